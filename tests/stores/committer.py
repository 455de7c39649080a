"""Commits steps as fast as it can and prints each id once it is acknowledged, until killed.

Run as `python -m tests.stores.committer DATABASE ROUND`.
"""

from __future__ import annotations

import asyncio
import sys

from msgspec.structs import replace

from gateway.config.storage import StorageSettings
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from steering_gateway_testing.store_conformance.records import a_head, a_step, history, one_run


async def _converse(store: SQLStateStore, round_number: int, number: int) -> None:
    first = one_run(round_number * 100 + number)
    run_id, version = first.runs[0].id, 0
    for index in range(1, 10_000):
        digests = history(first.conversation.id, 2 * index)
        call = replace(
            first,
            conversation=replace(first.conversation, version=version, served_head=digests[-1]),
            heads=(a_head(first.conversation.id, digests),),
            steps=(a_step(index, run_id),),
        )
        version = await store.commit(call)
        print(run_id, index, version, flush=True)


async def main(path: str, round_number: int) -> None:
    """Ten conversations at once."""
    store = SQLStateStore(SQLiteEngine(await Database.open(StorageSettings(path=path))))
    await asyncio.gather(*(_converse(store, round_number, number) for number in range(10)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
