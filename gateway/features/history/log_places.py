"""The places and formats of the logs that agents write, one row for each agent.

A reader needs its module in `readers` and a row in `log_places.toml`. An installed package adds a
row through the entry point group `steering_gateway.readers`, whose value is a `LogFormat`."""

import importlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import cast

from gateway.core.plugins import plugins
from gateway.data_files import read_toml
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.values import Value

_READERS = f"{__package__}.readers"


class LogFormat(Value):
    """One format of session logs. Its module has `read(log)`, the sessions of a file."""

    name: str  # the agent's
    # expression over the name of a file, a line feed, and the first bytes of the file, which fits
    # those of this format; b"" = the module has `matches(head, name)`, true for them
    form: bytes = b""
    module: str = ""  # below `readers`; "" = the one called like the format
    homes: Sequence[str] = ()  # glob patterns of its files below the home directory
    tested: str = ""  # the agent's versions that it was tested with

    def matches(self, head: bytes, name: str) -> bool:
        """True if a file with this beginning and name has this format."""
        if not self.form:
            return bool(self._reader.matches(head, name))
        beginning = name.encode("utf-8", "surrogatepass") + b"\n" + head
        return re.match(self.form, beginning, re.DOTALL) is not None

    def read(self, log: LogFile) -> Iterable[Session]:
        """The sessions of a file; what cannot be read is noted in `log`."""
        return cast(Iterable[Session], self._reader.read(log))

    @property
    def _reader(self) -> ModuleType:
        return importlib.import_module(self.module or f".{self.name.replace('-', '_')}", _READERS)


_BUILT_IN = tuple(
    LogFormat(**{**row, "form": "|".join(row.get("form", ())).encode()})
    for row in read_toml(__package__, "log_places.toml")["format"]
)


@cache
def formats() -> tuple[LogFormat, ...]:
    """The built-in formats, then those of installed packages, in the order they are tried."""
    names = {each.name for each in _BUILT_IN}
    return (*_BUILT_IN, *(each.load() for each in plugins("steering_gateway.readers", names)))
