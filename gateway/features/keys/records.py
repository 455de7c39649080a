"""Gateway keys, as stores keep them."""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from gateway.features.keys.settings import KeyRights
from gateway.hooks import features
from gateway.values import Texts, Value, frozen


@frozen
class KeyRecord:
    """One gateway key, without the key itself."""

    id: str  # names it in the API; not secret
    tenant: str  # whose data it reaches
    name: str  # for people; unique within the tenant
    hint: str  # first characters of the key, by which its owner recognises it
    digest: bytes = field(repr=False)  # SHA-256 of the key
    created_at: float  # epoch seconds
    revoked_at: float | None = None  # epoch seconds; None: the key is valid
    # rights, limits and attributes
    terms: "KeyTerms" = field(default_factory=lambda: KeyTerms())


class KeyLimits(Value, omit_defaults=True):
    """Limits of a key; None: any amount."""

    usd: float | None = None  # most US dollars in a period
    per: Literal["day", "week", "month", "total"] = "day"  # the period that `usd` is for
    rpm: int | None = None  # most calls in a minute
    tpm: int | None = None  # most tokens in a minute


_NAME_OF_TAG = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class KeyTerms(KeyLimits, omit_defaults=True, forbid_unknown_fields=True):
    """The rights, limits and attributes of a gateway key. Raises: ValueError."""

    owner: str = ""  # a person; "" for none
    team: str = ""  # for budgets and reports; "" for none
    tags: Mapping[str, str] = {}  # labels that every run of the key gets, by name
    models: tuple[str, ...] = ("*",)  # patterns of names that it may ask for, as in `auth.rights`
    routes: tuple[str, ...] = ("*",)  # patterns of routes that it may use, as in `auth.rights`
    expires_at: float | None = None  # epoch seconds from which it is as if revoked; None: never
    replaces: str = ""  # id of the key in whose place it was made; "" for none

    def __post_init__(self) -> None:
        KeyRights(routes=self.routes)
        for limit in ("usd", "rpm", "tpm"):
            if (most := getattr(self, limit)) is not None and not 0 < most < float("inf"):
                raise ValueError(f"{limit}: must be above 0")
            if most is not None and "budgets" not in features():
                raise ValueError(f"{limit}: no calls are counted without budgets")
        for name, value in {"owner": self.owner, "team": self.team, **self.tags}.items():
            if not _NAME_OF_TAG.fullmatch(name):
                raise ValueError(f"tags: {name[:60]!r} is not made of a to z, 0 to 9, `_` and `-`")
            if not value.isprintable() or len(value) > 120:
                raise ValueError(f"{name}: must be at most 120 visible characters")

    def labels(self) -> dict[str, str]:
        """The attributes by which budgets count, which no request can change."""
        return {"team": self.team, "owner": self.owner}

    def tagged(self, tags: Texts) -> dict[str, str]:
        """The tags of a run: the request's before the key's, but for its team and its owner."""
        fixed = {name: value for name, value in self.labels().items() if value}
        return {**self.tags, **tags, **fixed}
