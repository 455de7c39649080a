"""Checks before the start and at a reload: settings that fit together.

Each value was accepted by its own section; here several of them, or the machine, say no.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from urllib.parse import urlsplit

from gateway.auth.hosts import is_loopback_name
from gateway.config import Settings
from gateway.config.values import Faults
from gateway.errors import ConfigError
from gateway.upstream.deployments import DeploymentTable

_ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - only compared with


def check(settings: Settings, refused: Set[str] = frozenset()) -> None:
    """Refuse settings that are well formed but cannot work.

    refused: sections with faults of their own; what would read one of them is not checked.

    Raises:
        ConfigError: everything that is wrong: an upstream is the gateway itself, a deployment has
            no address, tenants share a key, the database cannot be written, or there cannot be
            several workers.
    """
    faults = Faults()
    for refuse, sections in _CHECKS.items():
        if refused.isdisjoint(sections):
            with faults.collected():
                refuse(settings)
    faults.raise_any()


def refuse_self_upstream(settings: Settings) -> None:
    """Refuse settings with which the gateway would call itself for ever.

    Raises:
        ConfigError: names each upstream whose host and port are the gateway's own.
    """
    faults = Faults()
    for path, url in _upstream_urls(settings):
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if port == settings.server.port and _is_own(parts.hostname or "", settings.server.host):
            faults.add(
                f"{path}: {url} is this gateway itself; if OPENAI_BASE_URL is set for agents, "
                "unset it for the gateway or set default_upstream.api_base"
            )
    faults.raise_any()


def refuse_shared_keys(settings: Settings) -> None:
    """Refuse one gateway key for two tenants: each would see what the other records.

    The admin key may be a gateway key, too, as LiteLLM's `master_key` is.

    Raises:
        ConfigError: names both tenants.
    """
    owners: dict[str, str] = {}
    faults = Faults()
    for tenant, key in settings.auth.gateway_keys.items():
        if (other := owners.setdefault(key, tenant)) != tenant:
            faults.add(f"auth.gateway_keys.{tenant}: the same key as that of {other!r}")
    faults.raise_any()


def refuse_unwritable_storage(settings: Settings) -> None:
    """Refuse a database that cannot be written or created.

    Raises:
        ConfigError: its path leads through a file, or permissions forbid it.
    """
    if settings.storage.in_memory or settings.storage.url is not None:
        return
    path = Path(settings.storage.path)
    if path.is_dir():
        raise ConfigError(f"storage.path: {str(path)!r} is a folder, not a file")
    # Missing folders are created. SQLite makes its journal in the folder of an existing file, too.
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ConfigError(f"storage.path: {str(folder)!r} is a file, not a folder")
    for needed in (folder, path):
        if needed.exists() and not os.access(needed, os.W_OK):
            raise ConfigError(f"storage.path: {str(needed)!r} cannot be written")


def refuse_workers(settings: Settings) -> None:
    """Refuse several workers where they cannot be.

    Raises:
        ConfigError: processes cannot be forked here, or could not share the store.
    """
    if settings.server.workers == 1:
        return
    if not hasattr(os, "fork"):
        raise ConfigError("server.workers: only 1 on this system, which cannot fork processes")
    if settings.storage.in_memory:
        raise ConfigError(
            "server.workers: several cannot share storage.path ':memory:'; name a file"
        )


def refuse_deployments(settings: Settings) -> None:
    """Refuse deployments that nothing can be sent to.

    Raises:
        ConfigError: names each, and each model named elsewhere, without provider or address.
    """
    DeploymentTable(settings, os.environ)


_UPSTREAMS = ("default_upstream", "model_list")
_CHECKS: Mapping[Callable[[Settings], None], tuple[str, ...]] = {
    refuse_self_upstream: (*_UPSTREAMS, "server"),
    refuse_shared_keys: ("auth",),
    refuse_unwritable_storage: ("storage",),
    refuse_workers: ("server", "storage"),
    refuse_deployments: _UPSTREAMS,
}
"""The checks, each with the sections that it needs; the others may be at their defaults."""


def _upstream_urls(settings: Settings) -> Iterable[tuple[str, str]]:
    upstream = settings.default_upstream
    yield "default_upstream.api_base", upstream.api_base
    if upstream.messages_api_base:
        yield "default_upstream.messages_api_base", upstream.messages_api_base
    for i, deployment in enumerate(settings.model_list):
        for name in ("api_base", "base_url"):
            if base := deployment.litellm_params.get(name):
                yield f"model_list[{i}].litellm_params.{name}", str(base)


def _is_own(host: str, bound: str) -> bool:
    if host == bound or host == socket.gethostname():
        return True
    if bound not in _ANY_ADDRESS and not is_loopback_name(bound):
        return False
    return is_loopback_name(host) or host in _ANY_ADDRESS
