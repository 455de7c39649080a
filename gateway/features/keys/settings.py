"""Settings of gateway keys, in the section `auth`."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, cast

from gateway.config.auth import AuthSettings
from gateway.config.values import Secret, above_zero, at_least, is_cut
from gateway.values import frozen

if TYPE_CHECKING:
    from gateway.config import Settings


@frozen
class KeyRights:
    """Limits of a gateway key; `*` and `?` stand for any characters."""

    routes: tuple[str, ...] = ("*",)  # below `/v1`, such as `/chat/*`
    models: tuple[str, ...] = ("*",)  # by the names that clients ask for

    def __post_init__(self) -> None:
        for route in self.routes:
            if route != "*" and (not route.startswith("/") or route.startswith("/v1/")):
                raise ValueError(f"routes: {route!r} is not a path below /v1, such as /embeddings")


@frozen
class KeySettings(AuthSettings):
    """Keys that requests must send; without any, none is required on loopback."""

    # tenant: key; with at least one, every request needs a key
    gateway_keys: Mapping[str, Secret] = field(default_factory=dict)
    # tenants whose keys may use files, batches and all else of the operator's provider account; "*"
    # = all; others have inference only
    provider_resources: tuple[str, ...] = ()
    # limits by the name of a key, tenant or "*" = all; each that applies holds
    rights: Mapping[str, KeyRights] = field(default_factory=dict)
    # how often keys made with `gateway keys` are read: longest time for which a revoked one is
    # accepted; seconds
    poll_s: float = 1
    # how long known keys stay valid while the store cannot be read; seconds, 0 = for ever
    stale_s: float = 3600

    def __post_init__(self) -> None:
        if empty := [name for name, key in self.gateway_keys.items() if not key]:
            raise ValueError(f"gateway_keys.{empty[0]}: may not be empty")
        # Each of two tenants with one key would see what the other records. The admin key may be a
        # gateway key, too, as LiteLLM's `master_key` is.
        owners: dict[str, str] = {}
        for tenant, key in self.gateway_keys.items():
            if (other := owners.setdefault(key, tenant)) != tenant:
                raise ValueError(f"gateway_keys.{tenant}: the same key as that of {other!r}")
        above_zero(self, "poll_s")
        at_least(self, 0, "stale_s")
        AuthSettings.__post_init__(self)

    def secrets(self) -> dict[str, Secret]:
        """The keys that are set, by the part of their key path after `auth`."""
        own = {f"gateway_keys.{tenant}": key for tenant, key in self.gateway_keys.items()}
        return own | AuthSettings.secrets(self)

    @property
    def names_keys(self) -> bool:
        """Whether it names gateway keys, so that a request must send one."""
        return bool(self.gateway_keys)


def lost(old: "Settings", new: "Settings") -> Iterator[str]:
    """The key paths of gateway keys and limits of keys that `new` lacks."""
    before = cast(KeySettings, old.auth)
    after = cast(KeySettings, new.auth)
    if before.stale_s != after.stale_s == KeySettings().stale_s:
        yield "auth.stale_s"
    for tenant, gateway_key in before.gateway_keys.items():
        now = after.gateway_keys.get(tenant)
        if now is None or is_cut(gateway_key, now):
            yield f"auth.gateway_keys.{tenant}"
    for name, rights in before.rights.items():
        given = after.rights.get(name, KeyRights())
        for kind in ("routes", "models"):
            if "*" in getattr(given, kind) and "*" not in getattr(rights, kind):
                yield f"auth.rights.{name}.{kind}"
