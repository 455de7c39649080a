"""Sessions kept as past runs: what is stored of them, once, and what never counts them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.config import Settings, settings_from_dict
from gateway.config.storage import StorageSettings
from gateway.core.decision_settings import Policy
from gateway.features.history import import_as_runs
from gateway.features.history.command import run_keep
from gateway.features.history.find import Found, named
from gateway.features.history.import_as_runs import Keeper, _keep_file, imported_id
from gateway.features.history.log_places import formats
from gateway.features.history.reading import read_session
from gateway.features.history.session import ModelCall, Session
from gateway.features.history.sub_agent_orders import with_orders
from gateway.features.learning.settings import LearningSettings, ReaderSettings
from gateway.features.learning.worker import Learner
from gateway.hooks import features
from gateway.steering.identity import conversation_id
from gateway.stores.filters import LIVE, RunFilter
from gateway.stores.learning import JOBS
from gateway.stores.lists import PageRequest
from gateway.stores.records import IMPORTED
from gateway.stores.traces import RunTrace
from gateway.stores.under_way import LiveQuery
from gateway.stores.usage import UsageQuery
from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import CONTROL, client_of
from steering_gateway_testing.patience import until
from steering_gateway_testing.store_conformance.records import one_run
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.features.pages.test_pages import page_of
from tests.stores.conftest import stores as stores

DAY = 86_400.0
BEGAN = 1_760_000_000.0  # long before the time of the tests
SECRET = "sk-ant-api03-" + "Ab3dE6gH9j" * 9
MODEL = "claude-sonnet-4-5"
Call = tuple[str, str]
"""A command of the shell, and its result."""


def a_session(
    id: str, *turns: tuple[str, Sequence[Call]], began: float = BEGAN, **more: Any
) -> Session:
    """A session of Claude Code's: for each task of the person, these calls, then an answer."""
    session = Session(id=id, agent="claude-code", project="/home/me/site", started=began, **more)

    def reply(content: list[dict[str, Any]]) -> None:
        position = len(session.messages)
        usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
        at, key = began + position, f"{id}:{position}"
        call = ModelCall(position=position, model=MODEL, usage=usage, at=at, key=key)
        session.calls.append(call)
        session.messages.append({"role": "assistant", "content": content})

    for task, calls in turns:
        session.messages.append({"role": "user", "content": [{"type": "text", "text": task}]})
        for command, result in calls:
            name = f"call{len(session.messages)}"
            use = {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": command}}
            reply([{"type": "text", "text": "Let me see."}, use])
            answer = {"type": "tool_result", "tool_use_id": name, "content": result}
            session.messages.append({"role": "user", "content": [answer]})
        reply([{"type": "text", "text": f"It is done: {task}"}])
    session.ended = began + len(session.messages)
    return session


def log_of(session: Session, folder: Path) -> Path:
    """The session as a file of Claude Code's."""
    path = folder / f"{session.id}.jsonl"
    calls = {call.position: call for call in session.calls}
    lines = []
    for at, message in enumerate(session.messages):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((session.started or 0.0) + at))
        line = {"type": message["role"], "isSidechain": False, "uuid": str(at), "timestamp": stamp}
        line |= {"sessionId": session.id, "cwd": session.project, "version": "2.1.0"}
        if call := calls.get(at):
            message = {**message, "id": call.key, "model": call.model, "usage": call.usage}
        lines.append(json.dumps(line | {"message": message}, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")
    return path


CLAUDE_CODE = next(each for each in formats() if each.name == "claude-code")
ONE = "11111111-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"
LS = ("ls", "a b c")
FAILS = ("pytest tests", "Exit code 1\nImportError: no module named site")


async def traces(stores: Stores, **filters: Any) -> list[RunTrace]:
    return [trace async for trace in stores.runs.export_runs(RunFilter(**filters))]


async def kept(stores: Stores, *sessions: Session, settings: Settings | None = None) -> Keeper:
    keeper = Keeper(stores, settings or Settings())
    for session in sessions:
        await keeper.keep(session)
    return keeper


async def test_a_session_is_runs_of_its_own_times(stores: Stores) -> None:
    """One run for each task, ended, with its steps, texts, tokens and cost; times are those of the
    session, and retention counts from the import."""
    session = a_session(ONE, ("Mend the fence", [LS, FAILS, LS]), ("Paint it", [LS]))
    keeper = await kept(stores, session)
    assert (keeper.counts.kept, keeper.counts.known, keeper.counts.live) == (1, 0, 0)
    first, second = await traces(stores)
    assert keeper.counts.runs == [first.run.id, second.run.id]
    assert [first.run.task_preview, second.run.task_preview] == ["Mend the fence", "Paint it"]
    for trace, calls in ((first, 4), (second, 2)):
        run = trace.run
        assert (run.mode, run.agent, run.state) == (IMPORTED, "claude-code", "END")
        assert (run.model_requested, run.tags) == (MODEL, {"project": "site"})
        totals = run.totals
        assert (totals.calls, totals.scored_steps, totals.errors) == (calls, calls - 1, 0)
        assert (totals.input_tokens, totals.cached_tokens) == (100 * calls, 90 * calls)
        assert totals.cost_usd is not None
        assert totals.saved_usd is None
        assert [step.step_index for step in trace.steps] == list(range(calls))
    assert first.run.started_at == BEGAN + 1
    assert first.run.ended_at == first.run.last_at == BEGAN + 7
    assert first.run.duration_s == 6
    assert [step.at for step in first.steps] == [BEGAN + at for at in (1, 3, 5, 7)]
    content = first.steps[2].content
    assert content is not None
    assert [(a.arguments, a.observation) for a in content.actions] == [
        ('{"command": "pytest tests"}', FAILS[1])
    ]
    assert content.reply_actions[0].arguments == '{"command": "ls"}'
    opening = first.steps[0].content
    assert opening is not None
    texts = [message.text for message in opening.messages]
    assert texts == ["Working directory: /home/me/site", "Mend the fence"]
    month_ago = time.time() - 30 * DAY
    assert (await stores.runs.prune(older_than=month_ago)).runs == 0
    assert (await stores.runs.prune(older_than=time.time() + 1)).runs == 2


def test_the_rows_are_those_of_the_live_gateway(start: Start, upstream: ScriptedUpstream) -> None:
    """The same messages, sent through the gateway and kept from a log: the same steps and runs."""
    session = Session(id=ONE, agent="claude-code")
    server = start()
    tasks = (("Mend the fence", [*[FAILS] * 9, LS]), ("Now paint it", [LS, FAILS]))
    with client_of(server) as client:
        for task, calls in tasks:
            session.messages.append({"role": "user", "content": task})
            for at, (command, result) in enumerate((*calls, ("", ""))):
                tool = ToolCall("bash", json.dumps({"command": command}), id=f"{task[:3]}{at}")
                upstream.default = Reply("Look", tool_calls=(tool,)) if command else Reply("Done.")
                body = {"model": "gpt-4o", "messages": session.messages}
                answer = client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()
                reply = answer.json()["choices"][0]["message"]
                call = ModelCall(position=len(session.messages), model="gpt-4o")
                session.calls.append(call)
                session.messages.append(reply)
                if command:
                    told = {"role": "tool", "tool_call_id": tool.id, "content": result}
                    session.messages.append(told)
    settings = server.app.runtime.settings

    async def both() -> list[RunTrace]:
        opened = await open_stores(settings.storage)
        await kept(opened, session, settings=settings)
        found = await traces(opened, mode=LIVE) + await traces(opened, mode=IMPORTED)
        await opened.close()
        return found

    one, two, *imported = asyncio.run(both())
    assert len(imported) == 2
    same = ("state", "difficulty", "scores", "composite", "fired", "failure_type")
    for live, past in zip((one, two), imported, strict=True):
        assert past.run.state == live.run.state == "END"
        assert past.run.task_preview == live.run.task_preview
        assert past.run.totals.fired == live.run.totals.fired
        assert len(past.steps) == len(live.steps)
        for a, b in zip(live.steps, past.steps, strict=True):
            assert [getattr(a, name) for name in same] == [getattr(b, name) for name in same]
            assert (a.evidence, a.loop_count, a.content) == (b.evidence, b.loop_count, b.content)
    assert imported[0].run.totals.fired


async def test_twice_changes_nothing_and_growth_adds(stores: Stores) -> None:
    """The second time nothing is written; of a session that has grown the new calls are, and its
    runs are those of one import, also where a commit takes a few calls only."""
    turns = (("Mend it", [LS, FAILS, LS]), ("Paint it", [LS, FAILS, FAILS]), ("Look", [LS]))
    whole = a_session(ONE, *turns)
    start_of = a_session(ONE, *turns)
    cut = next(
        at for at, m in enumerate(whole.messages) if m["content"][0].get("text") == "Paint it"
    )
    start_of.messages = whole.messages[: cut + 4]
    start_of.calls = [call for call in whole.calls if call.position < cut + 4]
    await kept(stores, start_of)
    before = await traces(stores)
    assert (await kept(stores, start_of)).counts.known == 1
    assert await traces(stores) == before
    grown = await kept(stores, whole)
    after = await traces(stores)
    assert (grown.counts.kept, len(after)) == (1, 3)
    assert grown.counts.runs == [trace.run.id for trace in after[1:]]
    assert after[0] == before[0]
    other = Keeper(stores, Settings(), tenant="other", now=lambda: after[1].run.updated_at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_as_runs, "CALLS_AT_ONCE", 2)
        await other.keep(whole)
    at_once = await traces(stores, tenant="other")
    assert len(at_once) == 3
    for one, two in zip(after, at_once, strict=True):
        assert [s.call for s in one.steps] == [s.call for s in two.steps]
        assert [(s.state, s.scores, s.content) for s in one.steps] == [
            (s.state, s.scores, s.content) for s in two.steps
        ]
        assert one.run.totals == two.run.totals


async def test_what_was_recorded_live_is_left_out(stores: Stores) -> None:
    """By the client's own id; so are the sub-agents of such a session."""
    live = one_run(1, tenant="default")
    known = replace(live.conversation, id=conversation_id("default", ONE))
    await stores.states.commit(replace(live, conversation=known))
    sub = a_session("sub", ("Look around", [LS]), parent=ONE)
    deeper = a_session("deeper", ("Look deeper", [LS]), parent="sub")
    keeper = await kept(stores, a_session(ONE, ("Mend", [LS])), sub, deeper)
    assert (keeper.counts.kept, keeper.counts.live) == (0, 3)
    assert [trace.run.mode for trace in await traces(stores)] == ["on"]


async def test_sub_agents_that_are_kept_first_hang_under_their_session(stores: Stores) -> None:
    """However deep, in any order of their logs, with the kind and task that the call gave; one
    whose log names no parent is a session of its own."""
    asked = {"subagent_type": "Explore", "description": "find it", "prompt": "Look around"}
    above = a_session(ONE, ("Mend", [LS]))
    call = {"type": "tool_use", "id": "t", "name": "Task", "input": asked}
    above.messages[1]["content"].append(call)
    sub = a_session("sub", ("Look around", [LS]), parent=ONE)
    deeper = a_session("deeper", ("Deeper", [LS]), parent="sub")
    lost = a_session("lost", ("Lost", [LS]), parent="unknown")
    sessions = [lost, deeper, sub, above]
    readings = with_orders([read_session(each, Policy()) for each in sessions])
    keeper = Keeper(stores, Settings(), readings=readings)
    for session in sessions:
        await keeper.keep(session)
    assert stores.sessions is not None
    found = await stores.sessions.list_sessions(RunFilter(), PageRequest())
    assert {each.title: each.run_count for each in found.sessions} == {"Mend": 3, "Lost": 1}
    tree = await stores.sessions.session(imported_id("default", "claude-code", ONE), tenant=None)
    assert tree is not None
    shown = [(each.role, each.depth, each.kind, each.task) for each in tree.members]
    assert shown == [
        ("main", 0, "", ""),
        ("sub_agent", 1, "Explore", "find it"),
        ("sub_agent", 2, "", ""),
    ]


async def test_sessions_that_name_each_other_as_parent_are_one(stores: Stores) -> None:
    """The first by name is the session, the others are below it; none is lost from the list."""
    circle = {"one": "three", "two": "one", "three": "two", "four": "three"}
    sessions = [a_session(name, (name, [LS]), parent=above) for name, above in circle.items()]
    readings = [read_session(each, Policy()) for each in sessions]
    keeper = Keeper(stores, Settings(), readings=readings)
    for session in sessions:
        await keeper.keep(session)
    assert stores.sessions is not None
    (found,) = (await stores.sessions.list_sessions(RunFilter(), PageRequest())).sessions
    assert (found.title, found.run_count) == ("one", 4)
    for name in circle:
        key = imported_id("default", "claude-code", name)
        tree = await stores.sessions.session(key, tenant=None)
        assert tree is not None
        assert tree.session.id == found.id
        assert tree.members[0].role == "main"


async def test_copies_of_an_answer_cost_once(stores: Stores) -> None:
    """A session that was resumed begins with what the earlier one has."""
    first = a_session(ONE, ("Mend", [LS, LS]))
    resumed = a_session(ONE, ("Mend", [LS, LS]), ("Paint", [LS]))
    resumed.id = TWO
    await kept(stores, first, resumed)
    runs = [trace.run for trace in await traces(stores)]
    assert sorted(run.totals.calls for run in runs) == [0, 2, 3]


async def test_a_run_goes_on_after_a_compaction(stores: Stores) -> None:
    """The summary opens no run and counts as no step."""
    session = a_session(ONE, ("Mend the fence", [LS, FAILS, LS]))
    summary = {"role": "user", "content": [{"type": "text", "text": "Summary: the fence is open."}]}
    session.messages.insert(5, summary)
    session.compactions.append(5)
    session.calls = [
        ModelCall(position=c.position + (c.position >= 5), model=MODEL, at=c.at, key=c.key)
        for c in session.calls
    ]
    await kept(stores, session)
    (trace,) = await traces(stores)
    assert [step.step_index for step in trace.steps] == [0, 1, 2, 3]
    assert trace.run.totals.scored_steps == 3
    content = trace.steps[2].content
    assert content is not None
    assert content.messages[-1].text == "Summary: the fence is open."
    after = trace.steps[3].content
    assert after is not None
    assert not after.prompted  # what is in the summary was no message of the person's


async def test_an_answer_ends_its_run_without_a_message(stores: Stores) -> None:
    """As it does live, where the reply is known to be whole when it is recorded."""
    session = a_session(ONE, ("Mend", [LS]), ("Paint", [LS, LS]))
    at = next(n for n, m in enumerate(session.messages) if m["content"][0].get("text") == "Paint")
    del session.messages[at]
    session.calls = [
        replace(call, position=call.position - (call.position > at)) for call in session.calls
    ]
    await kept(stores, session)
    assert [trace.run.totals.calls for trace in await traces(stores)] == [2, 3]


async def test_a_gateway_does_not_read_it_again(stores: Stores) -> None:
    """At its start it catches up with the newest live runs only."""
    await stores.states.commit(one_run(1, tenant="default"))
    await kept(stores, a_session(ONE, ("Mend", [LS])))

    def settings() -> LearningSettings:
        raise LookupError  # it has caught up, and would wait now

    learner = Learner(stores.learning, stores.runs, settings)
    with pytest.raises(LookupError):
        await learner.follow()
    assert learner.waiting == 1


async def test_texts_are_stored_as_the_settings_say(tmp_path: Path) -> None:
    """Masked, or as their length alone; the task of the run, too."""
    session = a_session(ONE, (f"Use {SECRET}", [(f"echo {SECRET}", SECRET)]))
    for content in (True, False):
        storage = StorageSettings(path=str(tmp_path / f"{content}.db"), store_content=content)
        opened = await open_stores(storage)
        await kept(opened, session, settings=changed(Settings(), storage=storage))
        (trace,) = await traces(opened)
        await opened.close()
        assert SECRET not in str(trace)
        assert ("Use" in trace.run.task_preview) is content
        assert "[omitted" in str(trace.steps) or content


async def test_two_that_keep_at_once(stores: Stores) -> None:
    """Each session is there once, whoever stores which part of it."""
    sessions = [a_session(f"s{n}", ("Mend", [LS] * 5), ("Paint", [LS])) for n in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_as_runs, "CALLS_AT_ONCE", 1)
        both = await asyncio.gather(kept(stores, *sessions), kept(stores, *sessions))
    assert sum(k.counts.kept for k in both) >= 6
    found = await traces(stores)
    assert sorted(trace.run.totals.calls for trace in found) == [2] * 6 + [6] * 6
    assert all(trace.run.totals.retries == 0 for trace in found)


KEEP = """
import io, sys
from pathlib import Path
from gateway.features.history.command import run_keep
from gateway.config import settings_from_dict
from gateway.features.history.find import named
settings = settings_from_dict({"storage": {"path": sys.argv[1]}})
sys.exit(run_keep(named([Path(sys.argv[2])]), settings, sys.stdout, sys.stderr))
"""


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    """Both end well, and nothing is stored twice."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(8):
        id = f"{number}{ONE[1:]}"
        log_of(a_session(id, ("Mend", [LS, FAILS] * 9), began=BEGAN + 1000 * number), logs)
    database = tmp_path / "gateway.db"
    words = [sys.executable, "-c", KEEP, str(database), str(logs)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, b""), err
        assert b" as past runs" in out
    found = asyncio.run(_all(database))
    assert [trace.run.totals.calls for trace in found] == [19] * 8


async def _all(database: Path) -> list[RunTrace]:
    opened = await open_stores(StorageSettings(path=str(database)), existing=True)
    found = await traces(opened)
    await opened.close()
    return found


def _settings(database: Path) -> Settings:
    return settings_from_dict({"storage": {"path": str(database)}})


def test_a_broken_session_does_not_stop_the_others(tmp_path: Path) -> None:
    """Each is named with what is wrong; the line at the end counts what was kept."""
    log_of(a_session(ONE, ("Mend", [LS])), tmp_path)
    gone = Found(path=tmp_path / "gone.jsonl", format=CLAUDE_CODE)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    deep = tmp_path / f"{TWO}.jsonl"
    deep.write_text((tmp_path / f"{ONE}.jsonl").read_text()[:700])
    found = [*named([tmp_path / f"{ONE}.jsonl", empty, deep]), gone]
    out, err = io.StringIO(), io.StringIO()
    database = tmp_path / "gateway.db"
    assert run_keep(found, _settings(database), out, err) == 0
    assert out.getvalue() == "kept 1 session as past runs: gateway dashboard\n"
    reasons = err.getvalue().splitlines()
    assert len(reasons) == 2
    assert "gone.jsonl" in reasons[0]
    assert f"{empty}: empty" in reasons[1]
    out = io.StringIO()
    other = [read_session(a_session(TWO, ("Mend", [LS])), Policy())]
    assert run_keep(found[:1], _settings(database), out, err, readings=other) == 0
    assert out.getvalue() == "kept 0 sessions as past runs: gateway dashboard\n"
    out = io.StringIO()
    assert run_keep(found[:1], _settings(database), out, err) == 0
    assert out.getvalue() == "kept 0 sessions as past runs (1 known already): gateway dashboard\n"
    assert run_keep([gone], _settings(database), out, err) == 1


async def test_a_session_that_cannot_be_scored_stops_no_other(tmp_path: Path) -> None:
    """What the core, or a message, raises is that session's alone."""
    odd = a_session(ONE, ("Mend", [LS]))
    odd.messages[1]["content"] = [{"type": "tool_use", "input": object()}]
    problems: list[str] = []
    opened = await open_stores(StorageSettings(path=str(tmp_path / "gateway.db")))

    class Odd(Found, frozen=True):
        def sessions(self, log: Any) -> Any:
            yield odd
            yield a_session(TWO, ("Mend", [LS]))

    keeper = Keeper(opened, Settings())
    await _keep_file(keeper, Odd(path=tmp_path / "x", format=CLAUDE_CODE), (), problems)
    await opened.close()
    assert keeper.counts.kept + len(problems) == 2
    assert keeper.counts.kept >= 1


BUILD = [
    ("mvn test", "bash: mvn: command not found"),
    ("./gradlew test", "BUILD SUCCESSFUL"),
    *[("deploy --now", "Error: the deployment was refused by the server")] * 3,
]


def test_outcomes_and_rates_come_from_it(tmp_path: Path) -> None:
    """What the person's own past says of models is there when the gateway starts, at no cost."""
    for number in range(3):
        id = f"{number}{ONE[1:]}"
        log_of(a_session(id, ("Build it.", BUILD), began=BEGAN + 1000 * number), tmp_path)
    database = tmp_path / "gateway.db"
    settings = _settings(database)
    settings = changed(settings, reader=changed(settings.of(ReaderSettings), model="gpt-4o"))  # type: ignore[call-arg]
    out = io.StringIO()
    run_keep(named([tmp_path]), settings, out, io.StringIO())
    assert out.getvalue().startswith("kept 3 sessions")

    async def learned() -> None:
        opened = await open_stores(settings.storage)
        runs = await opened.runs.list_runs(RunFilter(), PageRequest())
        assert {(r.outcome, r.outcome_source) for r in runs.runs} == {("success", "derived")}
        assert opened.workloads is not None
        await opened.workloads.settle()
        (rate,) = await opened.workloads.rates()
        assert (rate.model, rate.solved, rate.failed) == (MODEL, 3, 0)
        assert await opened.learning.count_jobs(JOBS) == {}
        await opened.close()

    asyncio.run(learned())


async def test_an_outcome_of_the_log_is_kept(stores: Stores) -> None:
    """Of the session's last run, and stronger than a derived one."""
    await kept(stores, a_session(ONE, ("Mend", [LS]), ("Paint", [LS]), outcome=False))
    first, last = [trace.run for trace in await traces(stores)]
    assert (first.outcome, last.outcome, last.outcome_source) == (None, "failure", "log")


def test_pages_show_it_and_nothing_counts_it(
    start: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The list and the run's page mark it; Now, sums, budgets, alerts and metrics are as before."""
    budget = {"name": "all", "scope": "tenant", "limits": {"usd": 5}}
    server = start(budgets=[budget])
    with client_of(server) as client:
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hello"}]}
        client.post("/v1/chat/completions", json=body).raise_for_status()
    addresses = (
        "/api/health-summary",
        "/api/usage?by=tenant",
        "/api/usage?by=mode",
        "/api/usage?by=agent",
        "/api/budgets",
        "/api/experiments",
        *(["/api/alerts"] if "alerts" in features() else []),
    )

    def seen() -> dict[str, Any]:
        with client_of(server) as client:
            found = {}
            for each in addresses:
                answer = client.get(each, headers=CONTROL)
                answer.raise_for_status()
                found[each] = answer.json()
            metrics = client.get("/metrics", headers=CONTROL).text
        # What a gateway holds of a limit for calls to come goes back when it has not used it.
        (account,) = found.pop("/api/budgets")["accounts"]
        found["spent"] = account["spent"]
        counts = ("gateway_cost", "gateway_steps", "gateway_tokens", "gateway_calls")
        return found | {"metrics": [x for x in metrics.splitlines() if x.startswith(counts)]}

    def settled() -> bool:
        return bool(seen()["spent"]["calls"] == 1)

    until(settled)
    before = seen()
    session = a_session(ONE, ("Mend the fence", [FAILS] * 12), began=time.time() - 60)
    settings = server.app.runtime.settings
    run_keep(named([log_of(session, tmp_path)]), settings, io.StringIO(), io.StringIO())
    assert seen() == before
    run = f"{imported_id('default', 'claude-code', ONE)}.0"
    listed = page_of(server, "/dashboard/runs")
    assert 'id="total">2<' in listed
    assert ">imported</span>" in listed
    assert run in page_of(server, "/dashboard/runs?mode=imported")
    assert run not in page_of(server, "/dashboard/runs?mode=live")
    page = page_of(server, f"/dashboard/runs/{run}")
    assert ">imported</span>" in page
    assert "ImportError" in page
    assert ">Pause<" not in page
    now = page_of(server, "/dashboard")
    assert "Say hello" in now
    assert "Mend the fence" not in now
    over_time = page_of(server, "/dashboard/time?by=model")
    assert "tag:project" not in over_time
    assert MODEL not in over_time.replace(f'<option value="{MODEL}"', "").replace(
        f">{MODEL}</option>", ""
    )
    with client_of(server) as client:
        past = client.get("/api/health-summary?mode=imported", headers=CONTROL).json()
        assert past["total_runs"] == 1
        assert client.get(f"/api/runs/{run}", headers=CONTROL).json()["run"]["mode"] == IMPORTED


async def test_now_and_usage_leave_it_out(stores: Stores) -> None:
    """Also a session of this minute."""
    now = time.time()
    await kept(stores, a_session(ONE, ("Mend", [LS]), began=now - 60))
    assert await stores.runs.live_runs(LiveQuery.at(now)) == ()
    assert await stores.runs.usage(UsageQuery(since=now - DAY, until=now + DAY)) == []
    assert (await stores.runs.health_summary(RunFilter())).total_runs == 0
