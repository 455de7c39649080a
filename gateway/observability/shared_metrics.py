"""The metrics of several workers in one answer: a scrape reaches only one of them.

Each worker serves its own on a socket in the file system. The one that is asked collects them and
adds the label `worker` to every series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

_WAIT_S = 1.0
"""Longest wait for another worker; one that does not answer is left out."""


class SharedMetrics:
    """One worker's part: `path` names a worker's socket, `render` gives its exposition text."""

    def __init__(
        self, index: int, count: int, path: Callable[[int], str], render: Callable[[], bytes]
    ) -> None:
        self._index = index
        self._count = count
        self._path = path
        self._render = render
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Give this worker's metrics to the others when they ask."""
        self._server = await asyncio.start_unix_server(self._serve, self._path(self._index))

    def close(self) -> None:
        """Give them no more."""
        if self._server is not None:
            self._server.close()

    async def collect(self) -> bytes:
        """The exposition text of all workers that answer."""
        others = [index for index in range(self._count) if index != self._index]
        asked: list[Awaitable[bytes | None]] = [self._ask(index) for index in others]
        texts = dict(zip(others, await asyncio.gather(*asked), strict=True))
        found = {index: text for index, text in texts.items() if text is not None}
        return merged({**found, self._index: self._render()})

    async def _serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._render())
        await writer.drain()
        writer.close()

    async def _ask(self, index: int) -> bytes | None:
        try:
            async with asyncio.timeout(_WAIT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(index))
                text = await reader.read()
                writer.close()
                return text
        except (OSError, TimeoutError):
            return None


def merged(texts: Mapping[int, bytes]) -> bytes:
    """Expositions by worker as one, in the order of the workers, each series with its worker."""
    families: dict[str, list[str]] = {}
    for index, text in sorted(texts.items()):
        known, family = set(families), ""
        for line in text.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                if family not in known:
                    families.setdefault(family, []).append(line)
            elif line:
                families.setdefault(family, []).append(_labelled(line, index))
    lines = [line for family in families.values() for line in family]
    return ("\n".join(lines) + "\n").encode()


def _labelled(series: str, worker: int) -> str:
    name, _, value = series.partition(" ")
    if "{" in name:
        name, _, rest = series.partition("{")
        return f'{name}{{worker="{worker}",{rest}'
    return f'{name}{{worker="{worker}"}} {value}'
