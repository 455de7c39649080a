"""Calls per second of four gateways on one account of PostgreSQL, with a delay put in.

`python -m bench.leases [CALLS]` prints calls/s, statements per call and whether the limit held. A
proxy delays each way by half; one gateway in four dies on the way and another takes its place.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from gateway.backends import open_stores
from gateway.budget_interface import Amounts
from gateway.config import Secret
from gateway.config.storage import StorageSettings
from gateway.features.budgets.accounts import AccountKey, Claim, Report, Wanted
from gateway.features.budgets.leases import BudgetLedger
from gateway.features.budgets.settings import BudgetControl
from gateway.features.budgets.store import SQLBudgetStore
from steering_gateway_testing.store_conformance.budgets import kept_budgets
from tests.postgres import new_database, shared_server

CALL = Amounts(usd=0.01, calls=1)
GATEWAYS, AT_ONCE = 4, 20
SETTINGS = BudgetControl(store_wait_ms=20_000, reservation_s=60)


async def proxy(socket: str, delay_s: float) -> tuple[asyncio.Server, int]:
    """A port of loopback that leads to a server's socket."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, data = await due.get()
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                if not data:
                    return writer.close()
                writer.write(data)

        delivering = asyncio.ensure_future(deliver())
        while data := await reader.read(65536):
            due.put_nowait((time.monotonic() + delay_s / 2, data))
        due.put_nowait((0.0, b""))
        await delivering

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(socket)
        await asyncio.gather(carry(reader, back), carry(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


class Counting:
    """An engine that counts statements."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.statements = engine, 0

    def __getattr__(self, name: str) -> Any:
        found: Callable[..., Coroutine[Any, Any, Any]] = getattr(self.engine, name)

        async def counted(*args: Any, **values: Any) -> Any:
            self.statements += 1
            return await found(*args, **values)

        return counted


async def measure(delay_s: float, calls: int, limit: int) -> dict[str, Any]:
    """One line of the table."""
    server = shared_server()
    url = new_database().replace("postgres@/", "postgres@127.0.0.1:{}/").split("?")[0]
    proxied, port = await proxy(f"{server.folder}/.s.PGSQL.{server.port}", delay_s)
    async with AsyncExitStack() as closing:
        closing.callback(proxied.close)
        engines, ledgers = [], []
        for _ in range(GATEWAYS):
            stores = await open_stores(
                StorageSettings(url=Secret(url.format(port) + "?sslmode=disable"))
            )
            closing.push_async_callback(stores.close)
            engine = Counting(kept_budgets(stores)._engine)  # type: ignore[attr-defined]
            store = SQLBudgetStore(engine)  # type: ignore[arg-type]
            engines.append(engine)
            ledgers.append((store, BudgetLedger(store, lambda: SETTINGS, 1.0)))
        key = AccountKey(budget="b", subject="s")
        wanted = Wanted(key=key, tenant="t", limits={"calls": limit}, stop_at=1.0)
        passed = refused = 0

        async def caller(which: int) -> None:
            nonlocal passed, refused
            for number in range(calls // GATEWAYS // AT_ONCE):
                store, ledger = ledgers[which]
                if not which and number == calls // GATEWAYS // AT_ONCE // 2:
                    ledgers[which] = (store, BudgetLedger(store, lambda: SETTINGS, 1.0))
                held = await ledger.reserve(
                    Claim(id="c", at=time.time(), estimate=CALL, accounts=(wanted,))
                )
                passed += not held.refusals
                refused += bool(held.refusals)
                if not held.refusals:
                    await asyncio.sleep(0)
                    end = Report(spent=CALL)
                    await ledger.settle(held, end)

        began = time.monotonic()
        await asyncio.gather(*[caller(n % GATEWAYS) for n in range(GATEWAYS * AT_ONCE)])
        took = time.monotonic() - began
        for _, ledger in ledgers:
            await ledger.flush(closing=True)
        (account,) = await ledgers[0][0].accounts([key])
        return {
            "delay_ms": delay_s * 1000,
            "calls_per_s": round((passed + refused) / took),
            "statements_per_call": round(sum(e.statements for e in engines) / calls, 4),
            "passed": passed,
            "limit": limit,
            "counted": account.used("calls", 0),
            "never_over": max(passed, account.used("calls", 0)) <= limit,
        }


def main() -> None:
    """Below the limit and beyond it, with 1 ms and 10 ms."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    for delay_s in (0.001, 0.01):
        for limit in (10 * calls, calls // 2):
            print(json.dumps(asyncio.run(measure(delay_s, calls, limit))))


if __name__ == "__main__":
    main()
