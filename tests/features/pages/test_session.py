"""The page of a session: its lanes, where their time went, and steering's own bill."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from gateway.api import sessions
from gateway.api.steering_bill import steering_bill
from gateway.config.storage import StorageSettings
from gateway.core.guidance_text import frame
from gateway.features.pages import session
from gateway.features.pages.session_lanes import (
    KINDS,
    Lane,
    axis_of,
    lanes_of,
    place_of,
    stretches_of,
)
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import (
    CallRecord,
    ConversationAbout,
    InjectionRow,
    StepContent,
    StepRow,
)
from gateway.stores.redact import omit
from gateway.stores.sessions import Member
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.stores.totals import RunRecord, RunTotals
from gateway.upstream.token_estimates import BYTES_PER_TOKEN
from steering_gateway_testing import AppServer
from steering_gateway_testing.store_conformance import records
from tests.api.conftest import Start

MODEL = "gpt-4o"


def call(at: float, latency_s: float = 2.0, run: str = "r1", step: int = 0, **more: Any) -> StepRow:
    """A step whose call ends at this time."""
    about: dict[str, Any] = {
        "model_asked": MODEL,
        "model_requested": MODEL,
        "latency_s": latency_s,
    } | more
    return records.a_step(step, run, at=at, call=records.a_chat(**about), content=None)


def spent(steps: list[StepRow], below: Any = ()) -> list[tuple[str, float, float]]:
    """The stretches of a conversation, without their steps."""
    return [(each.kind, each.begin, each.end) for each in stretches_of(steps, below)]


def test_time_is_with_the_model_then_with_tools_then_with_the_person() -> None:
    """Between calls of one run the tools are at work; between runs somebody waits."""
    assert spent([call(2.0), call(7.0), call(30.0, run="r2"), call(40.0, run="r2")]) == [
        ("model", 0.0, 2.0),
        ("tools", 2.0, 5.0),
        ("model", 5.0, 7.0),
        ("waiting", 7.0, 28.0),
        ("model", 28.0, 30.0),
        ("tools", 30.0, 38.0),
        ("model", 38.0, 40.0),
    ]


def test_an_act_of_a_person_is_a_wait_within_a_run() -> None:
    """After an interruption the run goes on when the person has written."""
    act = Intervention(kind="interrupt", of_reply=True)
    stopped = replace(call(2.0), content=StepContent(human=(act,)))
    assert [kind for kind, *_ in spent([stopped, call(60.0, step=1)])][1] == "waiting"
    rejected = replace(
        call(60.0, step=1), content=StepContent(human=(Intervention(kind="reject"),))
    )
    assert [kind for kind, *_ in spent([call(2.0), rejected])][1] == "waiting"


def test_sub_agents_take_their_part_of_the_time_with_tools() -> None:
    """The rest of it, before, between and after them, is the tools'."""
    assert spent([call(2.0), call(22.0)], [(4.0, 8.0), (10.0, 15.0), (30.0, 40.0)])[1:-1] == [
        ("tools", 2.0, 4.0),
        ("sub-agents", 4.0, 8.0),
        ("tools", 8.0, 10.0),
        ("sub-agents", 10.0, 15.0),
        ("tools", 15.0, 20.0),
    ]


def test_a_log_does_not_tell_the_model_from_the_tools() -> None:
    """It has the end of each answer alone; answers at once take their time once."""
    assert {kind for kind, *_ in spent([call(at, 0.0) for at in (1.0, 4.0, 9.0)])} == {"work"}
    assert spent([call(10.0, 10.0), call(11.0, 4.0)]) == [
        ("model", 0.0, 10.0),
        ("model", 10.0, 11.0),
    ]


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e3), st.sampled_from(("r1", "r2"))), max_size=30
    )
)
@example([(0.0, 0.0, "r1"), (5e-324, 0.0, "r1")])  # the smallest float, which nothing divides
def test_stretches_meet_and_cover_everything_once(drawn: list[tuple[float, float, str]]) -> None:
    """From the first beginning to the last end, without a gap, whatever the times are; and each
    has its place on the axis, in order."""
    steps = [call(at, latency, run) for at, latency, run in sorted(drawn)]
    found = list(stretches_of(steps, [(100.0, 200.0), (150.0, 4e5)]))
    assert all(left.end == right.begin for left, right in itertools.pairwise(found))
    assert all(each.end > each.begin for each in found)
    axis = axis_of((each.begin, each.end) for each in found if each.kind != "waiting")
    places = [place_of(each.begin, axis) for each in found]
    assert places == sorted(places)
    assert all(0.0 <= place <= 1.0 for place in places)


def test_an_idle_night_is_cut_out_of_the_axis() -> None:
    """What was worked keeps most of the width."""
    axis = axis_of([(40_000.0, 40_100.0), (0.0, 100.0), (50.0, 80.0)])
    assert [place_of(at, axis) for at in (-1.0, 0.0, 40_100.0, 1e9)] == [0.0, 0.0, 1.0, 1.0]
    assert 0.43 < place_of(100.0, axis) < 0.5 < place_of(40_000.0, axis) < 0.57


def test_a_lane_of_thousands_of_calls_has_few_parts() -> None:
    """Each part shows the longest stretch that begins in it."""
    steps = [call(10.0 * number, step=number) for number in range(1, 5001)]
    stretches = tuple(stretches_of(steps))
    axis = axis_of((each.begin, each.end) for each in stretches)
    lane = Lane(member=None, stretches=stretches, axis=axis)  # type: ignore[arg-type]
    assert len(lane.cells) == 120
    assert {each.kind for _, _, each in lane.cells} == {"tools"}
    assert sum(lane.seconds.values()) == pytest.approx(49_992.0)
    assert set(lane.seconds) == set(KINDS)


def one(
    number: int, steps: list[StepRow], texts: tuple[InjectionRow, ...] = (), **about: Any
) -> Any:
    """The commit of a conversation with one run."""
    made = records.one_run(
        number, steps=tuple(steps), tenant="default", task_preview=f"Task {number}"
    )
    tree = {"parent_id": "c0001", "root_id": "c0001"} if number > 1 else {}
    conversation = replace(made.conversation, **tree, **about)
    return replace(made, conversation=conversation, injections=texts)


async def kept(path: Path, *commits: CallRecord) -> dict[str, Any]:
    """Settings of a gateway with these conversations."""
    storage = {"path": str(path / "session.db")}
    database = await Database.open(StorageSettings(path=storage["path"]))
    for each in commits:
        await SQLStateStore(SQLiteEngine(database)).commit(each)
    await database.close()
    return storage


def tokens(cached: int, **more: Any) -> dict[str, Any]:
    """Usage of a call."""
    return {"input_tokens": 10_000, "cached_tokens": cached, "cost_usd": 0.01} | more


def got(server: AppServer, path: str) -> httpx.Response:
    """The answer to a GET."""
    return httpx.get(f"{server.url}{path}", timeout=120)


async def test_it_says_who_spent_most(start: Start, tmp_path: Path) -> None:
    """The kind of sub-agent and the dearest one, first; the address of a sub-agent or a run leads
    to the session; each lane has its share, and each call a link to its step."""
    storage = await kept(
        tmp_path,
        one(1, [call(10.0 * n, step=n, **tokens(0)) for n in range(1, 4)]),
        one(
            2, [call(14.0, **tokens(0, cost_usd=0.5))], agent_kind="Explore", task="find <b>it</b>"
        ),
        one(3, [call(25.0, **tokens(0, cost_usd=0.2))], agent_kind="Explore"),
        one(4, [call(26.0, **tokens(0, cost_usd=0.1))], agent_kind="Review"),
    )
    server = start(storage=storage)
    for name in ("c0003", "r0003"):
        answer = got(server, f"/dashboard/sessions/{name}")
        assert answer.headers["location"] == "/dashboard/sessions/c0001"
    page = got(server, "/dashboard/sessions/c0001").text
    facts = facts_of(page)
    assert "Cost $0.83 main agent $0.03 (4%), 3 sub-agents $0.80" in facts
    assert (
        "Who spent most Explore \u00d72 (84%) $0.70; dearest one $0.50: find &lt;b&gt;it&lt;/b&gt;"
        in facts
    )
    assert (
        "Time 30.0 s tools 36%, model 36%, in sub-agents 28%" in facts or "in sub-agents" in facts
    )
    assert page.count('class="lane-row') == 4
    assert 'href="/dashboard/runs/r0001?step=3#step-3"' in page
    assert "<b>it</b>" not in page
    assert got(server, "/dashboard/sessions/none").status_code == 404


def facts_of(page: str) -> str:
    """The words of a session's page from its facts on."""
    facts = re.sub(r"<[^>]+>|\s+", " ", page[page.index("session-facts") :])
    return " ".join(facts.split())


@pytest.mark.parametrize("price", [None, 0.0])
async def test_without_dollars_tokens_tell_who_spent_most(
    start: Start, tmp_path: Path, price: float | None
) -> None:
    """As with models of this machine, or of an unknown price: nobody's sum is called nothing."""
    spent = tokens(0, cost_usd=price)
    few, many = spent | {"input_tokens": 980}, spent | {"input_tokens": 49_980}
    storage = await kept(
        tmp_path,
        one(1, [call(10.0 * n, step=n, **few) for n in range(1, 5)]),
        one(2, [call(14.0, **few)], agent_kind="Review", task="look at it"),
        one(3, [call(15.0, **few)], agent_kind="Explore", task="look first"),
        one(4, [call(25.0, **many)], agent_kind="Explore", task="read it all"),
    )
    page = got(start(storage=storage), "/dashboard/sessions/c0001").text
    facts = facts_of(page)
    assert "main agent 4k tokens (7%), 3 sub-agents 52k tokens" in facts
    assert "Explore \u00d72 (91%) 51k tokens; largest one 50k tokens: read it all" in facts
    assert "()" not in facts
    assert re.search(r'>largest</span>\s*<a\s+href="/dashboard/runs/r0004"', page)
    assert "Explore 2 2 51k tokens 91%" in facts


async def test_a_session_without_usage_claims_no_sum(start: Start, tmp_path: Path) -> None:
    """Some agents' logs have no tokens: their sums and shares are unknown."""
    none: dict[str, Any] = {
        "input_tokens": None,
        "output_tokens": None,
        "cached_tokens": None,
        "cost_usd": None,
    }
    storage = await kept(
        tmp_path,
        one(1, [call(10.0, step=1, **none)]),
        one(2, [call(14.0, **none)], agent_kind="Explore"),
    )
    facts = facts_of(got(start(storage=storage), "/dashboard/sessions/c0001").text)
    assert "main agent \u2013, 1 sub-agent \u2013" in facts
    assert "()" not in facts


def test_a_run_that_began_after_the_conversations_were_read_has_no_lane() -> None:
    """Its calls are read a moment later than the conversations of a session under way."""
    update = records.a_run("r1")
    run = RunRecord(**asdict(update), conversation_id="c1", tenant="acme", totals=RunTotals())
    about = asdict(records.a_conversation("c1"))
    known = {name: about[name] for name in ConversationAbout.__struct_fields__}
    place: Any = {"kind": "", "task": "", "side_calls": 0, "role": "main", "depth": 0}
    member = Member(**known, **place, runs=(run,))
    (lane,) = lanes_of([member], [call(2.0), call(3.0, run="new")])
    assert [each.step.run_id for each in lane.stretches] == ["r1"]


async def test_steering_has_a_bill_of_its_own(start: Start, tmp_path: Path) -> None:
    """A text costs fresh input at first and cached input later; cache is lost by steering where it
    chose another model or changed the head of a prompt, and by nothing else."""

    def text(step: int, characters: int, run: str = "r0001", **about: Any) -> InjectionRow:
        return records.an_injection(step, run, text="x" * characters, **about)

    routed = {"model_asked": "gpt-4o-mini"}
    storage = await kept(
        tmp_path,
        one(
            1,
            [
                call(10.0, step=0, **tokens(8000)),
                call(20.0, step=1, **tokens(8000)),
                call(30.0, step=2, **tokens(8000)),
                call(40.0, step=3, **tokens(1000, **routed)),
                call(50.0, step=4, **tokens(0, **routed, model_requested="gpt-4o-mini")),
            ],
            (text(1, 4000), text(2, 400, source="skip")),
        ),
        one(
            2,
            [call(11.0, step=0, **tokens(8000)), call(21.0, step=1, **tokens(5000))],
            (text(1, 0, "r0002", placement="system"),),
        ),
        one(3, [call(12.0, step=0, **tokens(8000)), call(22.0, step=1, **tokens(0))]),
    )
    server = start(storage=storage)
    bill = got(server, "/api/sessions/c0001").json()["steering"]
    # The text at four calls, the directive and the second run's text at one, in a frame each.
    empty = round(len(frame(())) / BYTES_PER_TOKEN)
    standing = 1000 + empty
    directive = 100 + round(len(frame((), preface=False)) / BYTES_PER_TOKEN)
    assert bill["text_tokens"] == 4 * standing + directive + empty
    big, small = 2.5e-6, 1.5e-7
    fresh = standing * (big + big / 2 + small / 2 + small) + (directive + empty) * big
    assert bill["text_usd"] == pytest.approx(fresh)
    assert bill["lost_cache_tokens"] == 7000 + 3000
    assert bill["lost_cache_usd"] == pytest.approx(7000 * small / 2 + 3000 * big / 2)
    assert (bill["reader_tokens"], bill["reader_usd"]) == (0, 0.0)
    page = got(server, "/dashboard/sessions/c0001").text
    assert "own bill" in page
    assert "10k" in page


@pytest.mark.parametrize("text", ["[omitted: the log]", omit("a" * 80) + " more", "[omitted: "])
async def test_a_text_may_begin_like_one_that_is_not_stored(
    start: Start, tmp_path: Path, text: str
) -> None:
    """Its session has a page, and the bill counts its own characters."""
    step = call(10.0, run="r0001", **tokens(0))
    said = records.an_injection(0, "r0001", text=text)
    server = start(storage=await kept(tmp_path, one(1, [step], texts=(said,))))
    assert got(server, "/dashboard/sessions/c0001").status_code == 200
    bill = got(server, "/api/sessions/c0001").json()["steering"]
    framed = round(len(text) / BYTES_PER_TOKEN) + round(len(frame(())) / BYTES_PER_TOKEN)
    assert bill["text_tokens"] == framed


async def test_a_long_session_holds_nothing_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lanes and its bill take up to half a second, and are made beside the loop that answers
    agents."""
    beside = []

    def watched(work: Any) -> Any:
        def noted(*given: Any) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            beside.append(work.__name__)
            return work(*given)

        return noted

    for place in (session, sessions):
        monkeypatch.setattr(place, "steering_bill", watched(steering_bill))
    monkeypatch.setattr(session, "lanes_of", watched(lanes_of))
    server = start(storage=await kept(tmp_path, one(1, [call(10.0, step=1)])))
    assert got(server, "/dashboard/sessions/c0001").status_code == 200
    assert got(server, "/api/sessions/c0001").status_code == 200
    assert sorted(beside) == ["lanes_of", "steering_bill", "steering_bill"]


async def test_thousands_of_steps_are_a_page_of_kilobytes(start: Start, tmp_path: Path) -> None:
    """What is drawn is bounded, of lanes and of their parts, and the page says so."""
    steps = [call(10.0 * n, step=n, **tokens(0)) for n in range(4000)]
    long = [replace(step, composite=0.5) for step in steps]
    subs = [one(n, [call(5.0 * n + k, 0.5, step=k) for k in range(40)]) for n in range(2, 42)]
    server = start(storage=await kept(tmp_path, one(1, long), *subs))
    answer = got(server, "/dashboard/sessions/c0001")
    assert len(answer.content) < 700_000
    assert answer.text.count('class="lane-row') == 12
    assert "29 more conversations" in answer.text
    assert "from step 3600" in answer.text
    answer = got(server, "/dashboard/runs/r0001?step=2500")
    assert len(answer.content) < 1_900_000
    assert "steps 2000 to 2999 of 3999" in " ".join(answer.text.split())
