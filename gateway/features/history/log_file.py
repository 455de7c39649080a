"""Files that agents write: lines of JSON, whole JSON documents and texts, also compressed.

What cannot be read is noted with its line and never fatal, because formats change without notice.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import orjson

from gateway.errors import ConfigError, in_words
from gateway.values import FieldDict

HEAD_BYTES = 64 * 1024
"""Beginning of a file by which its format is recognised. A first line with an agent's system prompt
takes up to 45 kB in the logs seen."""
MOST_NOTED = 20  # unread lines of one file that are named; the rest is counted

_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
"""An escape, or without group 1 a backslash that begins none."""
_DECODER = json.JSONDecoder(strict=False)


class Unread(NamedTuple):
    """A line that was not understood."""

    line: int  # number from 1; 0: the whole file
    reason: str  # for people


class LogFile:
    """One file, read once from its beginning. `seen`: lines read so far. `unread`: the first
    `MOST_NOTED` lines that could not be read; `reasons`: how many lines for each reason. Compressed
    files end in `.gz`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = 0
        self.unread: list[Unread] = []
        self.reasons: Counter[str] = Counter()

    @property
    def name(self) -> str:
        """The file's name without `.gz`."""
        return self.path.name.removesuffix(".gz")

    @property
    def stem(self) -> str:
        """The file's name without its suffixes."""
        return self.name.rpartition(".")[0] or self.name

    def head(self) -> bytes:
        """The first `HEAD_BYTES` bytes. Raises ConfigError: the file cannot be read."""
        with self._opened() as file:
            return file.read(HEAD_BYTES)

    def records(self) -> Iterator[FieldDict]:
        """The JSON objects of a file of lines; `seen` is the number of the line just read. Raises
        ConfigError: the file cannot be opened. A file that breaks off is noted."""
        try:
            with self._opened() as file:
                for self.seen, line in enumerate(file, 1):
                    if line.strip():
                        yield from self._objects(line)
        except ConfigError as exc:
            if not self.seen:
                raise
            self.skip(f"cannot be read: {exc.__cause__}", self.seen + 1)

    def document(self) -> object:
        """Returns the value of a file that holds one JSON document. If it does not, notes that
        and returns None. Raises ConfigError: the file cannot be read."""
        values = _values(self.text().encode("utf-8", "surrogatepass"))
        self.seen = 1
        if not values:
            self.skip("not JSON", 0)
        return next(iter(values), None)

    def text(self) -> str:
        """The whole file; bytes that are not UTF-8 are replaced. Raises ConfigError."""
        with self._opened() as file:
            return file.read().decode("utf-8-sig", "replace")

    def beside(self, path: Path) -> FieldDict:
        """The object in another file of the same session, counted as a line of this one; empty, and
        noted, if it cannot be read as one."""
        self.seen += 1
        with suppress(ConfigError):
            found = LogFile(path).document()
            if isinstance(found, dict):
                return found
        self.skip("not an object in JSON")
        return {}

    def skip(self, reason: str, line: int | None = None) -> None:
        """Note that a line, by default the one just read, was not understood."""
        self.reasons[reason] += 1
        if len(self.unread) < MOST_NOTED:
            self.unread.append(Unread(self.seen if line is None else line, reason))

    def _objects(self, line: bytes) -> Iterator[FieldDict]:
        values = _values(line)
        if not values:
            self.skip("not JSON")
        for value in values:
            if isinstance(value, dict):
                yield value
            else:
                self.skip(f"expected an object, got {type(value).__name__}")

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        try:
            packed = self.path.name.endswith(".gz")
            with gzip.open(self.path) if packed else self.path.open("rb") as file:
                yield cast(IO[bytes], file)
        except (OSError, EOFError, zlib.error) as exc:
            raise ConfigError(f"{self.path}: cannot be read: {in_words(exc)}") from exc


def _values(line: bytes) -> list[Any]:
    """The JSON values in a line: one, or several where two writers met; empty for none. Text that a
    tool of the user's has changed, such as a masked key, may have left a backslash that JSON does
    not know: it is read as itself."""
    try:
        return [orjson.loads(line)]
    except orjson.JSONDecodeError:
        text = line.decode("utf-8-sig", "replace").strip()
    values = []
    at = 0
    mended = False
    while at < len(text):
        while text[at].isspace():
            at += 1
        try:
            value, at = _DECODER.raw_decode(text, at)
            values.append(value)
        except (json.JSONDecodeError, RecursionError) as exc:
            if mended or not str(exc).startswith("Invalid"):
                break
            text = text[:at] + _BACKSLASH.sub(_escaped, text[at:])
            mended = True
    return values


def _escaped(found: re.Match[str]) -> str:
    if found[1]:
        return found[0]
    return r"\\"
