"""The bench measures what it says: its bodies, its client, its figures, a run of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench import arrivals, bodies, instructions, stalls
from bench.__main__ import main
from bench.arms import ARMS, CHAT, Running
from bench.client import Connection, post
from bench.load import Case, Slice, correct, run_slice
from bench.statistics import Figure, percentile
from bench.streams import hold
from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream

DIRECT = next(arm for arm in ARMS if arm.name == "direct")


def running(upstream: ScriptedUpstream) -> Running:
    """The direct arm to this upstream."""
    return Running(arm=DIRECT, port=upstream.port, headers=(), server=None)


@pytest.mark.parametrize(
    ("body", "messages", "size"),
    [(bodies.small(), 1, 200), (bodies.tools(), 61, 60_000), (bodies.large(), 61, 400_000)],
)
def test_bodies_have_the_size_they_are_named_for(
    body: bodies.Body, messages: int, size: int
) -> None:
    """Valid JSON, so many messages, about so many bytes."""
    fields = json.loads(body.numbered(1))
    assert len(fields["messages"]) == messages
    assert body.size == pytest.approx(size, rel=0.3)


def test_each_number_is_a_conversation_of_its_own() -> None:
    """Numbered bodies differ in the first user message and in nothing else, not in length."""
    first, second = (bodies.tools().numbered(n) for n in (1, 123456))
    assert len(first) == len(second)
    one, other = json.loads(first), json.loads(second)
    assert one["messages"][1] != other["messages"][1]
    del one["messages"][1], other["messages"][1]
    assert one == other


def test_the_body_before_is_the_same_conversation_one_step_earlier() -> None:
    """All but the last call and its result."""
    body = bodies.tools()
    assert body.before is not None
    later, earlier = json.loads(body.numbered(7)), json.loads(body.before.numbered(7))
    assert later["messages"][:-2] == earlier["messages"]


@pytest.mark.parametrize("pace_s", [None, 0.0])
async def test_the_client_reads_bodies_and_streams_whole(pace_s: float | None) -> None:
    """Several answers on one connection, with a length and in chunks, however they are cut."""
    reply = Reply("word " * 500, chunks=100, chunk_delay_s=pace_s)
    with ScriptedUpstream(reply) as upstream:
        connection = await Connection.open(upstream.port)
        for stream in (False, True, True, False):
            body = bodies.small(stream=stream).numbered(1)
            answer = await connection.ask(post(CHAT, body))
            assert correct(answer, stream)
            assert 0 < answer.first_s <= answer.last_s
        connection.close()
        assert upstream.connections_opened == 1


async def test_a_slice_counts_what_was_answered_and_what_was_not() -> None:
    """An error status and a dropped connection are failures; the load goes on after them."""
    with ScriptedUpstream(Reply("fine")) as upstream:
        upstream.script(Fault(FaultKind.UNAVAILABLE), Fault(FaultKind.DROP_BEFORE_RESPONSE))
        case = Case(body=bodies.small(), concurrency=2)
        done = await run_slice(running(upstream), case, range(10))
    assert (len(done.latencies_ms), done.failures) == (8, 2)
    assert done.seconds > 0


async def test_a_slice_ends_in_time_but_not_before_each_connection_has_asked() -> None:
    """With no time at all, one request a connection."""
    with ScriptedUpstream(Reply("fine")) as upstream:
        case = Case(body=bodies.small(), concurrency=3)
        done = await run_slice(running(upstream), case, range(100), limit_s=0)
    assert len(done.latencies_ms) == 3


def test_percentiles_are_of_the_nearest_rank() -> None:
    """The median of four is the second; the 99th of few is the greatest; of none there is none."""
    assert percentile([4, 1, 3, 2], 50) == 2
    assert percentile([4, 1, 3, 2], 99) == 4
    assert math.isnan(percentile([], 50))


def test_a_figure_is_the_median_of_the_rounds_that_gave_one() -> None:
    """Rounds without a value do not count."""
    assert Figure.of([3.0, math.nan, 1.0, 2.0]) == Figure(median=2.0, low=1.0, high=3.0)


def test_cpu_is_counted_for_every_request() -> None:
    """A request that failed was paid for, too."""
    assert Slice(latencies_ms=[1.0], failures=1, cpu_ms=3.0).cpu_ms_per_request == 1.5


@pytest.mark.slow
def test_a_run_prints_its_tables_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One round over the relay: every request is answered, and the relay's CPU is seen."""
    out = tmp_path / "figures.json"
    options = ["--arms", "direct", "relay-aiohttp", "--cases", "small@1", "stream@2"]
    limits = ["--rounds", "1", "--requests", "10", "--streams", "0"]
    assert main([*options, *limits, "--json", str(out), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "small@1" in printed
    assert "| bare relay over aiohttp |" in printed
    figures = json.loads(out.read_text())
    assert figures["skipped"] == {}
    relayed = [case for case in figures["cases"] if case["arm"] == "relay-aiohttp"]
    assert [case["requests"] for case in relayed] == [10, 10]
    assert all(case["cpu_ms"]["median"] > 0 for case in relayed)
    assert figures["processes"][0]["rss_loaded_mb"] > 1


async def test_held_streams_are_counted_and_the_loop_is_probed(tmp_path: Path) -> None:
    """All streams of the relay are whole, and its stalls were measured meanwhile."""
    relay = next(arm for arm in ARMS if arm.name == "relay-aiohttp")
    held = await hold(relay, tmp_path, 20, chunks=5, chunk_delay_ms=20)
    assert (held.whole, held.streams) == (20, 20)
    assert 0 < held.stall_p50_ms <= held.stall_p99_ms <= held.stall_max_ms
    assert held.cpu_ms_per_stream > 0


async def test_stalls_are_told_apart_by_what_they_were_spent_on(tmp_path: Path) -> None:
    """Every arm has its ticks, each with what it waited for a core."""
    found = await stalls.measure(tmp_path / "bench.db", 70, turns=1, seconds=0.1)
    assert list(found) == ["idle", "hashing", "searching", "four", "python"]
    for name, arm in found.items():
        assert len(arm.late) == len(arm.waited) > 0
        assert arm.row(name).startswith(f"| {name} | ")


@pytest.mark.slow
async def test_requests_that_arrive_at_once(tmp_path: Path) -> None:
    """All of them are answered, steered and recorded, in both loads."""
    found = await arrivals.measure(tmp_path, new=20, agents=5, rounds=2, stream=True)
    assert [load.load for load in found] == ["new", "round 0", "round 1"]
    assert [load.calls for load in found] == [20, 5, 5]
    for load in found:
        assert (load.answered, load.steered, load.recorded) == (load.calls,) * 3
        assert 0 < load.first_p50_ms <= load.first_p99_ms <= load.last_max_ms
        assert load.rss_mb > 0


def test_a_budget_is_exceeded_by_more_than_the_noise() -> None:
    """Up to 5 % over is noise; what has no budget is not judged."""
    budgets = {"on": {"small": 5.0, "cold": 50.0}}
    assert instructions.exceeded({"on": {"small": 5.2, "cold": 52.6}}, budgets) == [
        "on cold: 52.60 M instructions, budget 50"
    ]
    assert instructions.exceeded({"on": {"stream": 9.0}, "off": {"small": 9.0}}, budgets) == []


def test_a_session_resends_its_growing_history() -> None:
    """Each request is the last one, the answer that was given to it, and the call's result."""
    first, second, *_ = instructions.KINDS["session"].make(7)
    before, after = (json.loads(request.body)["messages"] for request in (first, second))
    assert after[: len(before)] == before
    assert after[len(before)] == first.answer
    assert after[-1]["role"] == "tool"
