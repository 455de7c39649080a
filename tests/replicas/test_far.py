"""A gateway that starts far away from its database needs few answers of it, not much time."""

from __future__ import annotations

import pytest

from gateway.backends import open_stores
from gateway.config import settings_from_dict
from gateway.library.catalogue import starter_patterns
from gateway.runtime import Runtime
from steering_gateway_testing.store_conformance.sample_patterns import SIZE, drawn, pattern
from tests.postgres import new_database, shared_server
from tests.replicas.far_server import far

_ONE_WAY_S = 0.04
_MOST_OF_A_FIRST_START = 130
"""Waits for the database: the tables, 14 partitions, the starter patterns, and reads; 114 when this
was written, 1,120 and no end when each pattern had statements of its own."""


@pytest.mark.slow
async def test_a_first_start_far_away() -> None:
    """The empty database gets its tables and the starter patterns at the first attempt."""
    server, url = shared_server(), new_database()
    async with far(server, url, _ONE_WAY_S) as (way, there):
        # No second attempt: what is not done at the first one ends the start.
        runtime = Runtime(settings_from_dict({"storage": {"url": there, "start_wait_s": 0}}))
        opened = await runtime.start()
        try:
            assert opened.patterns is not None
            assert await opened.patterns.library.store.count() == len(starter_patterns())
            assert way.waits <= _MOST_OF_A_FIRST_START
        finally:
            await runtime.aclose()


async def test_many_patterns_take_as_many_statements_as_few() -> None:
    """Whether they are new, replaced, unchanged or embedded again."""
    server, url = shared_server(), new_database()
    taken = []
    async with far(server, url, 0.0) as (way, there):
        stores = await open_stores(
            settings_from_dict({"storage": {"url": there}}).storage, vectors=True
        )
        store = stores.patterns
        await store.open_space("test", SIZE)
        for count in (2, 2, 60):
            await store.remove_unfit()
            before, marks = way.waits, ("new", "new", "other")
            for mark in marks:
                entries = [
                    (pattern(f"{mark} {count} {n}", pattern_id=f"{count}-{n}"), drawn(n))
                    for n in range(count)
                ]
                await store.add(entries)
                await store.set_vectors(entries)
            taken.append(way.waits - before)
        await stores.close()
    _, few, many = taken  # the first ones prepare the statements
    assert many <= few
