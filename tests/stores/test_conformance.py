"""The conformance suite over every store, and the stores against each other."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.backends import Stores
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import VersionConflict
from gateway.stores.records import CallRecord, StepRow
from steering_gateway_testing import store_conformance
from steering_gateway_testing.store_conformance import ALL_CHECKS, Check, records
from steering_gateway_testing.store_conformance.check import raises
from tests.stores.conftest import PLACES, opened


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
async def test_store(check: Check, stores: Stores) -> None:
    """Every promise of the protocols holds for every store."""
    await check(stores)


def test_no_check_is_forgotten() -> None:
    """Each coroutine function of the suite that takes stores is among its checks, once."""
    folder = Path(store_conformance.__path__[0])
    written = [
        line.split("(")[0].removeprefix("async def ")
        for module in folder.glob("*.py")
        for line in module.read_text().splitlines()
        if line.startswith("async def ") and line.endswith("(stores: Stores) -> None:")
    ]
    assert sorted(written) == sorted(check.__name__ for check in ALL_CHECKS)


def test_the_suite_needs_no_test_framework() -> None:
    """An outside store can run it with whatever it tests with."""
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import steering_gateway_testing.store_conformance as suite; print(len(suite.ALL_CHECKS))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) == len(ALL_CHECKS)


def test_raises_notices_what_is_missing() -> None:
    """No exception, or another message, is an AssertionError; another exception passes through."""
    with raises(ValueError, "two") as caught:
        raise ValueError("one two")
    assert str(caught.value) == "one two"
    with pytest.raises(AssertionError, match="was not raised"), raises(ValueError):
        pass
    with pytest.raises(AssertionError, match="does not match"), raises(ValueError, "three"):
        raise ValueError("one")
    with pytest.raises(KeyError), raises(ValueError):
        _ = {}["other"]


def _any_call(draw: random.Random, versions: dict[str, int]) -> CallRecord:
    conversation_id = f"c{draw.randrange(4)}"
    at = records.START + draw.randrange(1000)
    runs = [
        records.a_run(
            f"{conversation_id}-r{number}",
            started_at=at,
            updated_at=at + draw.random(),
            state=draw.choice(("NORMAL", "SLOW", "END")),
            agent=draw.choice(("a", "b", "")),
            outcome=draw.choice((None, "success", "failure")),
            outcome_source=draw.choice(("derived", "api")),
        )
        for number in draw.sample(range(3), draw.randint(1, 2))
    ]
    steps = [_any_step(draw, run.id) for run in runs for _ in range(draw.randrange(3))]
    injections = [
        records.an_injection(step.step_index, step.run_id, applied=draw.random() < 0.5)
        for step in steps
    ]
    stale = draw.random() < 0.1
    return records.a_call(
        conversation=records.a_conversation(
            conversation_id,
            version=versions.get(conversation_id, 0) + stale,
            created_at=records.START,
            updated_at=at,
        ),
        heads=(records.a_head(conversation_id, records.history("h", draw.randint(1, 9))),),
        runs=tuple(runs),
        steps=tuple(steps),
        injections=tuple(injections),
    )


def _any_step(draw: random.Random, run_id: str) -> StepRow:
    """A step without a composite was not scored: nothing fired, and nobody knows what failed."""
    composite = draw.choice((None, 0.125, 0.5, 0.875))
    fired = tuple(draw.sample(("streak", "hedge"), draw.randrange(3)))
    return records.a_step(
        draw.randrange(6),
        run_id,
        state=draw.choice(("FAST", "NORMAL", "SLOW")),
        composite=composite,
        fired=() if composite is None else fired,
        failure_type=None if composite is None else draw.choice((None, "loop")),
        call=draw.choice(
            (None, records.a_chat(cost_usd=None), records.a_chat(model_asked="m2", cost_usd=0.125))
        ),
        content=draw.choice((None, records.some_content())),
    )


async def _everything(stores: Stores) -> list[object]:
    page = await stores.runs.list_runs(RunFilter(), PageRequest(limit=100, sort="steps"))
    traces = [await stores.runs.get_run(run.id, tenant=None) for run in page.runs]
    conversations = await stores.runs.list_conversations(tenant=None)
    summary = await stores.runs.health_summary(RunFilter())
    rounded = replace(
        summary,
        cost_usd=round(summary.cost_usd or 0, 6),
        saved_usd=round(summary.saved_usd or 0, 6),
    )
    heads = await stores.states.find_prefix_hashes("acme", records.history("h", 9))
    return [
        page.runs,
        traces,
        conversations,
        rounded,
        await stores.runs.facets(tenant=None),
        sorted((head.conversation_id, head.position) for head in heads),
    ]


@pytest.mark.parametrize("seed", range(5))
async def test_stores_agree(seed: int, tmp_path: Path) -> None:
    """After the same random calls, stale ones among them, every store gives the same answers."""
    answers = []
    for place in PLACES:
        draw, versions = random.Random(seed), dict[str, int]()
        async with opened(place, tmp_path, store_content=True) as stores:
            for _ in range(60):
                call = _any_call(draw, versions)
                try:
                    versions[call.conversation.id] = await stores.states.commit(call)
                except VersionConflict:
                    continue
            answers.append(await _everything(stores))
    assert all(answer == answers[0] for answer in answers)
    assert len(answers) == len(PLACES) > 1
