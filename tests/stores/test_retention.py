"""Retention while the clock jumps, and for runs that are going on."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import Stores
from gateway.config.storage import StorageSettings
from gateway.retention_schedule import Retention
from steering_gateway_testing.store_conformance.records import START, one_run

DAY_S = 86_400.0


class Clocks:
    """A wall clock that can jump, and a steady one."""

    def __init__(self) -> None:
        self.wall_s = self.steady_s = START

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def _retention(
    stores: Stores,
    clocks: Clocks,
    settings: StorageSettings | None = None,
    *,
    running: Sequence[str] = (),
) -> Retention:
    """Retention by these clocks; `running`: conversations that count as active, whenever asked."""
    return Retention(
        stores.runs,
        lambda _seconds: list(running),
        settings or StorageSettings(),
        wall=lambda: clocks.wall_s,
        steady=lambda: clocks.steady_s,
    )


async def _kept(stores: Stores) -> set[str]:
    found = await stores.runs.list_conversations(tenant=None)
    return {row.id for row in found.conversations}


async def test_a_jump_of_the_clock_defers_retention(stores: Stores) -> None:
    """Nothing is removed until the clock has run evenly for a day; what is active stays anyway."""
    for number in range(3):
        await stores.states.commit(one_run(number))
    clocks, settings = Clocks(), StorageSettings(retention_days=30, clock_settle_s=DAY_S)
    retention = _retention(stores, clocks, settings, running=("c0001",))
    assert await retention.run() == 0
    clocks.wall_s += 400 * DAY_S
    for _ in range(23):
        clocks.pass_(3600)
        assert await retention.run() == 0
    assert await _kept(stores) == {"c0000", "c0001", "c0002"}
    clocks.pass_(2 * 3600)
    assert await retention.run() == 2
    assert await _kept(stores) == {"c0001"}


async def test_a_jump_there_and_back_removes_nothing(stores: Stores) -> None:
    """A clock that is corrected again has cost no run."""
    await stores.states.commit(one_run(1))
    clocks = Clocks()
    retention = _retention(stores, clocks)
    await retention.run()
    for jump_s in (400 * DAY_S, -400 * DAY_S):
        clocks.wall_s += jump_s
        clocks.pass_(3600)
        await retention.run()
    for _ in range(48):
        clocks.pass_(3600)
        await retention.run()
    assert await _kept(stores) == {"c0001"}


async def test_a_clock_that_is_wrong_at_the_start_removes_nothing(stores: Stores) -> None:
    """When every run is old at the first pass, the clock may be ahead: it has to prove itself."""
    await stores.states.commit(one_run(1))
    clocks = Clocks()
    clocks.pass_(400 * DAY_S)
    retention = _retention(stores, clocks)
    assert await retention.run() == 0
    clocks.pass_(25 * 3600)
    assert await retention.run() == 1
