"""Addresses that are this machine's own; a gateway that would forward to itself is refused."""

import ipaddress
import socket
from urllib.parse import urlsplit

from gateway.config.settings import Settings
from gateway.config.values import Faults

_ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - only compared with


def is_loopback_name(name: str) -> bool:
    """Whether a name or address is always this machine's own."""
    name = name.lower()
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761 section 6.3
        return True
    address = ip_address(name)
    return address is not None and address.is_loopback


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def refuse_self_upstream(settings: Settings) -> None:
    """Refuse upstreams whose host and port are the gateway's own. Raises: ConfigError."""
    upstream = settings.default_upstream
    bound = settings.server.host
    urls = {f"default_upstream.{name}": base for name, base in upstream.bases().items()}
    for i, deployment in enumerate(settings.model_list):
        for name in ("api_base", "base_url"):
            base = str(deployment.litellm_params.get(name) or "")
            urls[f"model_list[{i}].litellm_params.{name}"] = base
    open_here = bound in _ANY_ADDRESS or is_loopback_name(bound)
    faults = Faults()
    for path, url in urls.items():
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        is_here = open_here and (is_loopback_name(host) or host in _ANY_ADDRESS)
        own = is_here or host in (bound, socket.gethostname())
        if url and own and port == settings.server.port:
            faults.add(
                f"{path}: {url} is this gateway itself; if OPENAI_BASE_URL is set for agents, "
                "unset it for the gateway or set default_upstream.api_base"
            )
    faults.raise_any()
