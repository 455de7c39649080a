"""Gateway processes on one database, and a balancer that knows no conversations."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from steering_gateway_testing.loopback import listening
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.processes import GatewayProcess

ENVIRONMENT = {
    "GATEWAY_STEERING__MODE": "on",
    # A call that waits for a database on a busy machine is not to go out without its decision.
    "GATEWAY_STEERING__MAX_WAIT_MS": str(DEADLINE_MS),
    "GATEWAY_ETRACES__ENABLED": "true",
}

Order = Callable[[int], Iterable[int]]
"""Of so many gateways, the numbers of those to try for one connection, in order."""


class InTurn:
    """Round robin."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def __call__(self, count: int) -> Iterable[int]:
        first = next(self._turns)
        return [(first + number) % count for number in range(count)]


class AtRandom:
    """Any of them."""

    def __init__(self) -> None:
        self._draw = random.Random(7)

    def __call__(self, count: int) -> Iterable[int]:
        return self._draw.sample(range(count), count)


class Fleet:
    """So many gateways with one config, between `with` and its end."""

    def __init__(self, directory: Path, config: Mapping[str, Any], count: int) -> None:
        self.gateways: list[GatewayProcess] = []
        for number in range(count):
            (folder := directory / f"gateway-{number}").mkdir()
            text = json.dumps(config)
            self.gateways.append(GatewayProcess(folder, text, env=ENVIRONMENT))

    def __enter__(self) -> Fleet:
        for gateway in self.gateways:
            gateway.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        for gateway in self.gateways:
            gateway.__exit__(*why)

    @property
    def ports(self) -> list[int]:
        """Where the gateways listen; one that is restarted listens elsewhere."""
        return [urlsplit(gateway.url).port or 0 for gateway in self.gateways]

    async def kill(self, number: int) -> None:
        """End a gateway with `kill -9`, and start it again."""
        gateway = self.gateways[number]
        gateway.process.kill()
        await asyncio.to_thread(gateway.end)
        gateway.close()
        gateway.lines.clear()
        await asyncio.to_thread(gateway.__enter__)


@asynccontextmanager
async def balancer(ports: Callable[[], Sequence[int]], order: Order) -> AsyncIterator[str]:
    """The URL at which every connection goes to one of the gateways: the first of `order` that
    accepts it. A connection to a gateway that dies is cut off."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            found = ports()
            for number in order(len(found)):
                with suppress(OSError):
                    there = await asyncio.open_connection("127.0.0.1", found[number])
                    break
            else:
                return
            ways = ((reader, there[1]), (there[0], writer))
            pumps = [asyncio.ensure_future(_pump(*way)) for way in ways]
            with suppress(asyncio.CancelledError):  # the test is over
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            there[1].close()
        finally:
            writer.close()

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
