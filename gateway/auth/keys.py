"""The sender of a request, and the table of gateway keys that is asked for it."""

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from gateway.config import AuthSettings
from gateway.values import Texts, frozen

if TYPE_CHECKING:
    from gateway.backends import Stores

DEFAULT_TENANT = "default"  # the tenant of requests while no key is required

KEY_PREFIX = "gw-"


def key_digest(key: str) -> bytes:
    """SHA-256 of the key, which is stored and compared instead of the key."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


class Terms(Protocol):
    """The attributes of a stored key."""

    def labels(self) -> dict[str, str]:
        """The attributes by which budgets count, which no request can change."""

    def tagged(self, tags: Texts) -> dict[str, str]:
        """The tags of a run: the request's before the key's, but for its team and its owner."""


@frozen
class Principal:
    """The tenant a request belongs to, and the headers in which it sent gateway keys."""

    tenant: str = DEFAULT_TENANT  # whose budgets, conversations and patterns the request uses
    key_headers: frozenset[bytes] = frozenset()  # names in lower case; they are not forwarded
    guessable: bool = False  # whether the key is short enough to be found by trying
    # the name of the gateway key, of the config its tenant's; empty for a request without one
    key: str = ""

    terms: Terms | None = None  # of a key that is stored
    operator: bool = False  # whether it has the admin key, too


class Keys:
    """The valid gateway keys. This class has none: every caller is `DEFAULT_TENANT`."""

    # of keys with limits, by tenant and name of the key
    budgets: Mapping[tuple[str, str], tuple[Any, ...]] = {}
    required: bool = False  # there are keys, so that a request must send one

    def update(self, settings: AuthSettings) -> None:
        """Use the keys of a config that was read."""

    async def refresh(self, stores: "Stores") -> None:
        """Read the stored keys again. Raises: StoreError, and keeps the keys known before."""

    def find(self, digest: bytes) -> Principal | None:
        """The holder of the valid key with this digest; None without one."""
        return None

    def expiry(self, digest: bytes) -> str:
        """The time at which the key with this digest has expired; empty when none has."""
        return ""

    def tenants(self) -> Mapping[bytes, str]:
        """The tenants of the valid keys, by digest."""
        return {}
