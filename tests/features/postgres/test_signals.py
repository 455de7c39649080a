"""PostgreSQL: what gateways keep in memory is told to the others when one of them changes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.core.pattern import Status
from gateway.features.postgres import database as signals
from gateway.stores.controls import Control
from gateway.stores.learning import EvidenceRow, Posterior
from gateway.stores.protocols import CONTROLS, KEYS, PATTERNS, RESYNC, StoreUnavailable
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.store_conformance.keys import a_key, kept_keys
from steering_gateway_testing.store_conformance.records import START, TENANT
from steering_gateway_testing.store_conformance.sample_patterns import add, drawn, opened, pattern
from tests.examples import by_day
from tests.features.learning.test_lessons import a_lesson
from tests.pooler import through_pooler
from tests.postgres import empty_database

Change = Callable[[Stores], Awaitable[Any]]
OWN = (TENANT, "own")


async def first_of_all(stores: Stores) -> None:
    """A key, a hold, a pattern and three lessons, one of which only run r1 supports."""
    await kept_keys(stores).add_key(a_key("k1"))
    assert stores.controls is not None
    await stores.controls.hold(Control(subject="r1", tenant=TENANT, action="pause", at=START))
    await add(await opened(stores), pattern("p1", pattern_id="p1"), drawn(1))
    where = {"run_id": "r1", "conversation": "c1", "task": "t"}
    seen = EvidenceRow(tenant=TENANT, pattern_id="own", step_index=1, kind="fix", at=START, **where)
    lessons = [
        a_lesson("own", tenant=TENANT, tier="e2"),
        a_lesson("new", "k2", tenant=TENANT, tier="e2", status="candidate"),
    ]
    await stores.learning.learn([(lessons[0], [seen]), (lessons[1], ())])


async def hold(stores: Stores) -> None:
    """Stop a run."""
    assert stores.controls is not None
    await stores.controls.hold(Control(subject="r2", tenant=TENANT, action="stop", at=START))


async def release(stores: Stores) -> None:
    """Let the run go on that is paused."""
    assert stores.controls is not None
    await stores.controls.release("r1")


CHANGES: Mapping[str, tuple[str, Change]] = {
    "key added": (KEYS, lambda s: kept_keys(s).add_key(a_key("k2"))),
    "key revoked": (KEYS, lambda s: kept_keys(s).revoke_key("k1", START)),
    "keys deleted": (KEYS, lambda s: kept_keys(s).delete_keys()),
    "run held": (CONTROLS, hold),
    "run resumed": (CONTROLS, release),
    "pattern added": (PATTERNS, lambda s: s.patterns.add([(pattern("p2"), drawn(2))])),
    "pattern edited": (
        PATTERNS,
        lambda s: s.patterns.edit(pattern("news", pattern_id="p1"), drawn(1)),
    ),
    "pattern removed": (PATTERNS, lambda s: s.patterns.delete(None, "p1")),
    "lesson learned": (PATTERNS, lambda s: s.learning.learn([(a_lesson("more"), ())])),
    "lesson retired": (
        PATTERNS,
        lambda s: s.learning.move(*OWN, Status.RETIRED, reason="", at=START),
    ),
    "lesson rated": (PATTERNS, lambda s: s.learning.put_posterior(*OWN, 1, Posterior(), START)),
    "run forgotten": (PATTERNS, lambda s: s.learning.forget(TENANT, "r1", START)),
}


@pytest.fixture
async def stores() -> AsyncIterator[tuple[Stores, Stores]]:
    """Those of two gateways on one database."""
    with empty_database() as url:
        settings = StorageSettings(url=Secret(url))
        found = [await open_stores(settings, vectors=True) for _ in range(2)]
        yield found[0], found[1]
        for each in found:
            await each.close()


@pytest.mark.parametrize("name", by_day(CHANGES, 4))
async def test_a_change_is_told(stores: tuple[Stores, Stores], name: str) -> None:
    """The other gateway hears of it, and so does not wait until it reads everything again."""
    here, there = stores
    await first_of_all(here)
    kind, change = CHANGES[name]
    heard: asyncio.Queue[str] = asyncio.Queue()
    assert there.signals is not None
    follow = asyncio.ensure_future(there.signals.follow(lambda each, _: heard.put_nowait(each)))
    try:
        async with asyncio.timeout(ANSWER_S):
            assert await heard.get() == RESYNC
            await change(here)
            assert await heard.get() == kind
    finally:
        follow.cancel()
        with suppress(asyncio.CancelledError):
            await follow


class _Lines:
    """A log whose warnings are kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str) -> None:
        self.lines.append(event)


async def test_a_pooler_that_passes_no_signals_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to set; where signals arrive, nothing is."""
    with empty_database() as url:
        pooled = StorageSettings(url=Secret(through_pooler(url)), prepared_statements=False)
        for direct, heard_s, said in ((None, 0.1, 1), (Secret(url), ANSWER_S, 0)):
            monkeypatch.setattr(signals, "_HEARD_S", heard_s)
            stores = await open_stores(replace(pooled, listen_url=direct))
            assert isinstance(stores.signals, signals.PostgresSignals)
            log, expect, expected = _Lines(), stores.signals._expect, asyncio.Event()

            async def noted(*events: asyncio.Event, expect=expect, expected=expected) -> None:
                await expect(*events)
                expected.set()

            monkeypatch.setattr(signals, "_log", log)
            monkeypatch.setattr(stores.signals, "_expect", noted)
            follow = asyncio.ensure_future(stores.signals.follow(lambda _kind, _ids: None))
            await asyncio.wait_for(expected.wait(), ANSWER_S)
            follow.cancel()
            with suppress(asyncio.CancelledError):
                await follow
            assert ["set storage.listen_url" in line for line in log.lines] == [True] * said
            await stores.close()


async def test_a_pooler_that_keeps_no_prepared_statements(stores: tuple[Stores, Stores]) -> None:
    """The setting is named, in one line."""
    here = stores[0]
    assert isinstance(here.signals, signals.PostgresSignals)
    for _ in range(4):
        await kept_keys(here).list_keys()
    for _ in range(4):  # what another client of the pooler leaves behind
        await here.signals._database.run(lambda each: each.execute("DEALLOCATE ALL"))
    with pytest.raises(
        StoreUnavailable, match=r"set storage\.prepared_statements: false"
    ) as caught:
        await kept_keys(here).list_keys()
    assert "HINT" not in str(caught.value)
