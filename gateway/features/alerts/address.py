"""The address of the gateway for links in alerts.

Links that answer a question are signed, so that whoever is at the address could use them. Hence it
is never taken from a client: the browser of an operator who has logged in sends its session only to
the host at which he did so."""

import hmac
from contextlib import suppress
from hashlib import sha256
from urllib.parse import urlsplit

from gateway.config import ServerSettings, Settings
from gateway.config.own_address import is_loopback_name
from gateway.features.alerts.settings import AlertSettings
from gateway.features.alerts.store import AlertStore
from gateway.stores.protocols import StoreError

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a server on all addresses is at


async def address_of(settings: Settings, store: AlertStore, visited: str, *, port: int = 0) -> str:
    """`alerts.base_url`; without it the address at which an operator saw the dashboard last, in
    this process (`visited`; "" for never) or as it was noted; else that of the server, which
    listens on `port` (0: on that of the config). One of loopback leads nowhere from other machines,
    and is the last choice."""
    if base_url := settings.of(AlertSettings).base_url:
        return base_url
    if visited and not _on_loopback(visited):
        return visited
    with suppress(StoreError):
        # Whoever can write into the database is not believed.
        seal, _, noted = (await store.address()).partition(" ")
        if store.secret and hmac.compare_digest(seal, _seal(noted, store.secret)):
            return noted
    return visited or _listening(settings.server, port)


async def keep_address(store: AlertStore, visited: str) -> None:
    """Keep an address for other gateways on the store, and for after a restart."""
    if store.secret and not _on_loopback(visited):
        await store.keep_address(f"{_seal(visited, store.secret)} {visited}")


def _listening(server: ServerSettings, port: int) -> str:
    host = _ANY.get(server.host, server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port or server.port}"


def _on_loopback(address: str) -> bool:
    return is_loopback_name(urlsplit(address).hostname or "")


def _seal(address: str, secret: bytes) -> str:
    return hmac.new(b"gateway address\x00" + secret, address.encode(), sha256).hexdigest()
