"""Names of hosts that a gateway answers: recognises names that no stranger can own.

A web page reaches a gateway on loopback or in a private network if its author points a name of
his own at that address (DNS rebinding). The browser sends that name as `Host`. So names that a
stranger can register are refused; addresses, and names that public DNS does not have, are not."""

import re
import socket
from collections.abc import Iterable
from functools import lru_cache

from gateway.config.own_address import ip_address, is_loopback_name

_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([\w.~%!$&'()*+,;=-]+))(?::[0-9]*)?")

# No public name ends so. Source: RFC 6762, ICANN resolution 2024.07.29.06, RFC 8375; `.svc` is what
# a service is called inside of a Kubernetes cluster.
_PRIVATE_SUFFIXES = (".local", ".internal", ".home.arpa", ".svc")

_NAMES_KEPT = 256


@lru_cache(_NAMES_KEPT)
def host_name(field: bytes) -> str:
    """The name in a Host field: lower case, without port, brackets and last dot; "" for no name."""
    found = _HOST.fullmatch(field)
    if found is None:
        return ""
    return (found[1] or found[2]).decode("ascii").lower().removesuffix(".")


class HostNames:
    """The values of `Host` that a gateway without keys answers. listens_on: `server.host`. On
    loopback these are loopback's names, elsewhere also addresses and names that no stranger can
    own. `allowed` adds to them: names, `*.domain`, or `*`."""

    def __init__(self, listens_on: str, allowed: Iterable[str]):
        self._beyond_loopback = not is_loopback_name(listens_on)
        self._names = {name.strip("[]").lower() for name in allowed}
        self._any = "*" in self._names
        self._domains = tuple(name[1:] for name in self._names if name.startswith("*."))
        if self._beyond_loopback:
            self._names |= {listens_on.lower(), socket.gethostname().lower()}
        # Whether a Host field is one of them.
        self.include = lru_cache(_NAMES_KEPT)(self._include)

    def _include(self, field: bytes) -> bool:
        name = host_name(field)
        if self._any or not name:
            return self._any
        if name in self._names or is_loopback_name(name) or name.endswith(self._domains):
            return True
        address = ip_address(name)
        if address is not None:
            return self._beyond_loopback or address.is_unspecified  # 0.0.0.0 leads to this machine
        return self._beyond_loopback and ("." not in name or name.endswith(_PRIVATE_SUFFIXES))
