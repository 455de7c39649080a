"""Rules that people state: to which runs they are given, where, and who approves them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import httpx
import orjson
import pytest
from msgspec.structs import replace

from gateway.auth.keyring import make_key
from gateway.backends import Stores, open_stores
from gateway.cli import main
from gateway.config.models import LearningSettings
from gateway.config.storage import StorageSettings
from gateway.learning.book import LessonBook
from gateway.learning.corrections import instructed
from gateway.learning.life_cycle import (
    ACTIVE_SHARE,
    BY_OPERATOR,
    LessonActions,
    next_move,
    why_not_active,
)
from gateway.learning.worker import Learner
from gateway.steering.guidance.lessons import STATED, LessonQuery
from gateway.steering.guidance.pattern import Status
from gateway.steering.transcript.content import FRAME_OPEN
from gateway.steering.transcript.interventions import Intervention
from gateway.steering.transcript.steps import Action
from gateway.stores.learning import DecisionRow, LessonFilter, Posterior, StoredLesson
from gateway.stores.records import PromptMessage
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.store_conformance.records import (
    START,
    TENANT,
    a_call,
    a_conversation,
    a_first_step,
    a_run,
    a_step,
    one_run,
    some_content,
)
from tests.api.conftest import client_of, start
from tests.learning.distilling import read_again
from tests.learning.test_corrections import action
from tests.learning.test_pages import ACME, ADMIN, KEYS
from tests.live.client import PLAIN, TOOLS

__all__ = ["start"]
Start = Callable[..., AppServer]
RULE = "Use pnpm instead of npm."
SAID = (
    "please use pnpm instead of npm",
    "never force push to main",
    "run the linter first",
    "stop adding comments everywhere",
    "always run the tests before you commit",
    "why did you delete the tests?",
    "before you push, run the formatter",
)
DAY_S, RETIRED = 86_400.0, Status.RETIRED


async def talk(stores: Stores, number: int, words: str, **how: Any) -> None:
    """A run of a project in which a person rejected `git push` after `git commit`."""
    run_id, project = f"r{number:04}", how.get("project", "shop")
    at = START + how.get("day", 0) * DAY_S + number
    folder = how.get("folder", "/home/ann")
    opening = PromptMessage(role="system", text=f"Working directory: {folder}/{project}")
    human = (Intervention(kind="reject", words=words),)
    commit = some_content(actions=(action("Bash", command="git commit"),), messages=(), human=())
    push = action("Bash", command=how.get("command", "git push"))
    steps = (
        a_first_step(run_id, content=some_content(messages=(opening,), human=())),
        a_step(1, run_id, content=commit),
        a_step(2, run_id, at=at, content=some_content(actions=(push,), messages=(), human=human)),
    )
    who = {"key_name": how.get("person", "ann"), "tenant": how.get("tenant", "default")}
    run = {"task_preview": f"Task {'ab'[number % 2]}", "started_at": at, "updated_at": at}
    record = one_run(number, steps=steps, **run, **who)
    await stores.states.commit(replace(record, decisions=how.get("decisions", ())))
    if how.get("read", True):
        await read_again(stores, [run_id])


async def rules(stores: Stores) -> list[StoredLesson]:
    found = await stores.learning.lessons(LessonFilter(key_prefix="said|"))
    return sorted(found, key=lambda each: -each.support.conversations)


async def taught(
    database: Path, said: Sequence[str] = SAID, tenant: str = "default", *, approved: bool = True
) -> None:
    """A project whose people said these things, the first most often, all approved."""
    stores = await open_stores(StorageSettings(path=str(database)))
    number = 0
    for place, words in enumerate(said):
        for _ in range(1 + (place == 0)):
            await talk(stores, number, words, tenant=tenant)
            number += 1
    actions = LessonActions(stores.learning)
    for each in await rules(stores) if approved else ():
        await actions.move(each, Status.TRIAL, "approved by the operator", 1.0)
    await stores.close()


def pusher(request: ReceivedRequest) -> Reply:
    """Commits, then answers."""
    if any(m.get("role") == "assistant" for m in request.messages):
        return Reply("Done.")
    return Reply("", tool_calls=(ToolCall("bash", {"command": "git commit -m x"}, id="c0"),))


async def sent(
    upstream: ScriptedUpstream,
    url: str,
    name: str,
    system: str,
    user: str = "Fix it.",
    *,
    key: str = "",
    then: str = "",
    outcome: str = "",
) -> list[dict[str, Any]]:
    """The bodies that leave in one run: the first call, and the one after `git commit`. `then`: the
    person's next message, after the answer."""
    before = len(upstream.requests)
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    async with httpx.AsyncClient(timeout=60) as http:
        for turn in range(3 if then else 2):
            if turn == 2:
                messages[-1] = {"role": "user", "content": then}
            body = {"model": "m", "messages": messages, "tools": TOOLS}
            headers = {"x-conversation-id": name, **({"x-gateway-key": key} if key else {})}
            headers |= {"x-gateway-outcome": outcome} if outcome and turn == 1 else {}
            answer = await http.post(f"{url}/chat/completions", json=body, headers=headers)
            message = answer.raise_for_status().json()["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": "c0", "content": "1 file changed"}
            messages += [message, result]
    return [request.json for request in list(upstream.requests)[before:]]


@pytest.fixture
def gateway(gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path) -> AppServer:
    upstream.default = pusher
    learning = {"trials": "on", "interval_s": 3600}
    storage = {"path": str(tmp_path / "runs.db")}
    asyncio.run(taught(tmp_path / "runs.db"))
    return gateway_server({**PLAIN, "storage": storage, "learning": learning})


async def test_a_run_of_the_project_begins_with_its_rules(
    gateway: AppServer, upstream: ScriptedUpstream
) -> None:
    """Once in the system prompt, five at most and under 120 tokens, the same bytes in each call;
    after the call before the mistake a reminder; another project gets nothing."""
    here, url = "Working directory: /home/ann/shop", gateway.base_url
    runs = [await sent(upstream, url, f"run-{number}", here) for number in range(4)]
    for first, second in runs:
        system = first["messages"][0]["content"]
        assert orjson.dumps(first).decode().count(FRAME_OPEN) == 1
        block = [line for line in system.splitlines() if STATED in line]
        assert 1 <= len(block) <= 5
        assert len("\n\n".join(block)) <= 4 * 120
        assert str(first).count(STATED) == len(block)
        assert second["messages"][0] == first["messages"][0]
        assert str(second["messages"][1:]).count(STATED) <= 2
    assert any(f"{STATED}: {RULE}" in str(first) for first, _ in runs)
    assert any(STATED in str(second["messages"][2:]) for _, second in runs)
    for system in ("Working directory: /home/ann/other", "Help.", here + "s"):
        for other in await sent(upstream, url, f"other-{system}", system):
            assert STATED not in str(other)


async def test_nothing_that_the_agents_own_instructions_say(
    gateway: AppServer, upstream: ScriptedUpstream
) -> None:
    """Neither in the system prompt nor in a CLAUDE.md among the first messages."""
    system = "Working directory: /home/ann/shop\nUse `pnpm`, never `npm`."
    for number in range(4):
        user = "# CLAUDE.md\n- Before `git push`: run the linter, please.\n\nFix it."
        for body in await sent(upstream, gateway.base_url, f"own-{number}", system, user):
            assert "Use pnpm instead of npm." not in str(body)
            assert "run the linter." not in str(body)


@pytest.mark.parametrize(
    ("rule", "own", "says"),
    [
        ("Use pnpm instead of npm.", "We build with pnpm instead of npm.", True),
        ("Do not commit or push unless asked.", "Commit and push only when asked.", True),
        ("Do not commit or push unless asked.", "Commit and push whenever you ask.", False),
        ("Run the linter before you push.", "Push often. Run it. Linter: ruff.", False),
    ],
)
def test_what_instructions_say(rule: str, own: str, says: bool) -> None:
    """Most words of the rule in one sentence, with a limit where the rule has one."""
    assert instructed(rule, [PromptMessage(role="user", text=own)]) is says


@pytest.mark.parametrize("how", [{"person": "ben"}, {"day": 1}])
async def test_a_trial_opens_with_two_people_or_two_days(how: dict[str, Any]) -> None:
    """One person alone opens none on one day; what does harm waits for an operator."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    harm = "always delete the branch after a merge"
    for words in (SAID[0], harm):
        for number in range(2):
            await talk(stores, number + 10 * (words == harm), words)
    assert [next_move(each, 2.0, trials=True) for each in await rules(stores)] == [None, None]
    for number, words in ((2, SAID[0]), (13, harm)):
        await talk(stores, number, words, **how)
    moves = {
        str(each.pattern.fields["recommended_action"]): next_move(each, 2.0, trials=True)
        for each in await rules(stores)
    }
    assert moves["Use pnpm instead of npm."] is not None
    assert list(moves.values()).count(None) == 1
    await stores.close()


def test_only_an_operator_approves(start: Start, tmp_path: Path) -> None:
    """The key that an agent has can change no rule; an operator's approval makes it active."""
    path = tmp_path / "acme.db"
    server = start(auth=KEYS, storage={"path": str(path)})
    asyncio.run(taught(path, SAID[:1], "acme", approved=False))
    with client_of(server, ACME) as acme, client_of(server, ADMIN) as operator:
        (rule,) = acme.get("/api/lessons").json()["lessons"]
        at, form = f"lessons/{rule['pattern_id']}", {"action": "approve"}
        assert (rule["status"], rule["advice"]) == ("candidate", "Use pnpm instead of npm.")
        assert acme.patch(f"/api/{at}", json={"status": "active"}).status_code == 403
        assert acme.post(f"/dashboard/{at}", data=form).status_code == 403
        origin = {"origin": server.url}
        assert acme.get(f"/api/{at}").json()["status"] == "candidate"
        page = operator.get("/dashboard/lessons").text
        assert "What your agents keep being told" in page
        assert all(
            word in page
            for word in ("<h3>shop</h3>", "Use pnpm instead of npm.", ">ann<", "2 sessions")
        )
        assert ">ann<" not in acme.get("/dashboard/lessons").text
        for action, words in (
            ("approve", "approved"),
            ("pause", "paused"),
            ("approve", "approved"),
        ):
            address, data = f"/dashboard/{at}?tenant=acme", {"action": action}
            assert operator.post(address, data=data, headers=origin).status_code == 303
            assert f"{words} by the operator" in operator.get("/dashboard/lessons").text
        assert acme.get(f"/api/{at}").json()["status"] == "active"
        one = operator.get(f"/dashboard/{at}?tenant=acme").text
        assert "Did a person have to say it again in the run?" in one
        assert "<q>please use pnpm instead of npm</q>" in one
        assert "a trial of its own" not in one
        own = {"action": "edit", "advice": "Use pnpm for all."}
        operator.post(f"/dashboard/{at}?tenant=acme", data=own, headers=origin)
        page = operator.get("/dashboard/lessons").text
        assert "Use pnpm for all." in page
        assert "Use pnpm instead of npm." not in page, "the version before is retired"


def applied(diff: str) -> None:
    subprocess.run(["patch", "-p1"], input=diff.encode(), check=True, capture_output=True)


def test_rules_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules that are given go into a project's file as a diff, and are given no more."""
    database, project = tmp_path / "runs.db", tmp_path / "shop"
    project.mkdir()
    (project / "AGENTS.md").write_text("# Shop\nNo end")
    asyncio.run(taught(database, SAID[:2]))
    monkeypatch.chdir(project)
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(database))
    assert main(["learn", "rules"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2
    assert all(word in listed[0] for word in ("shop", "active", "2 sessions", "ann", "pnpm"))
    assert main(["learn", "rules", "--export", "AGENTS.md"]) == 0
    printed = capsys.readouterr()
    applied(printed.out)
    expected = ["# Shop", "No end", "", "## Rules", "", f"- {RULE}", "- Do not force push to main."]
    assert (project / "AGENTS.md").read_text().splitlines() == expected
    assert "2 rules will no longer be given" in printed.err
    assert main(["learn", "rules", "--json"]) == 0
    rows = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["status"] for row in rows} == {"quarantined"}
    assert {row["why_not_active"] for row in rows} == {"exported to AGENTS.md by the operator"}
    for words, why in (((), "none of its rules is given"), (("--project", "x"), "known for")):
        assert main(["learn", "rules", "--export", "AGENTS.md", *words]) == 2
        assert why in capsys.readouterr().err


async def test_projects_of_one_name_are_separate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed with their digests; an export in a folder takes that folder's rules."""
    folder, database = tmp_path / "shop", tmp_path / "runs.db"
    folder.mkdir()
    stores = await open_stores(StorageSettings(path=str(database)))
    await talk(stores, 0, SAID[0])
    await talk(stores, 1, SAID[1], folder=str(tmp_path))
    for each in await rules(stores):
        await LessonActions(stores.learning).move(each, Status.TRIAL, "approved", 1.0)
    await stores.close()
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(database))
    monkeypatch.chdir(folder)
    assert await asyncio.to_thread(main, ["learn", "rules"]) == 0
    names = {line.partition(")")[0] for line in capsys.readouterr().out.splitlines()}
    assert len(names) == 2
    assert all(name.startswith("shop (") for name in names)
    assert await asyncio.to_thread(main, ["learn", "rules", "--project", "shop"]) == 2
    assert all(f"{name})" in capsys.readouterr().err for name in list(names)[:1])
    assert await asyncio.to_thread(main, ["learn", "rules", "--export", "CLAUDE.md"]) == 0
    diff = capsys.readouterr().out
    assert "+- Do not force push to main." in diff
    assert "pnpm" not in diff
    applied(diff)
    assert (folder / "CLAUDE.md").read_text().startswith("## Rules")


async def test_what_one_person_said_is_for_that_person() -> None:
    """Until it is approved, or somebody else says it; an edited rule takes what is said later."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    opening = [PromptMessage(role="system", text="Working directory: /home/ann/shop")]

    async def given(person: str, *calls: Action) -> list[str]:
        book = LessonBook(stores.learning, failed=failed)
        query = LessonQuery(
            keys=(), exclude=frozenset(), actions=calls, person=person, opening=lambda: opening
        )
        return [match.pattern.pattern_id for match in await book.find(query, "default")]

    def failed(error: Exception) -> None:
        raise error

    for day in range(2):
        await talk(stores, day, SAID[0], day=day)
    (rule,) = await rules(stores)
    name = rule.pattern.pattern_id
    assert await given("ann") == []  # a candidate
    await stores.learning.move("default", name, Status.TRIAL, reason="two days", at=1.0)
    assert (await given("ann"), await given("ben")) == ([name], [])
    before, other = action("Bash", command="git commit -m x"), action("Bash", command="ls src")
    assert (await given("ann", before), await given("ann", other)) == ([name], [])
    await talk(stores, 2, SAID[0], person="ben")
    assert await given("ben") == [name]
    (rule,) = await rules(stores)
    edited = await LessonActions(stores.learning).edit(rule, "Use pnpm for all.", 2.0)
    assert await given("eve") == [edited.pattern_id]
    shares = {each.pattern.pattern_id: each.posterior.share for each in await rules(stores)}
    assert shares[edited.pattern_id] == ACTIVE_SHARE
    await talk(stores, 3, SAID[0])
    support = {each.pattern.pattern_id: each.support.conversations for each in await rules(stores)}
    assert support == {name: 3, edited.pattern_id: 4}
    await stores.close()


async def test_a_rule_recurs_when_it_is_said_again() -> None:
    """In the run that it was decided about, after the decision, as seen when the run is over."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    await talk(stores, 0, SAID[0])
    (rule,) = await rules(stores)
    owner, name = "default", rule.pattern.pattern_id
    key = rule.pattern.lesson.key if rule.pattern.lesson else ""
    for number, words in ((1, SAID[0]), (2, "thanks, go on")):
        decision = DecisionRow(
            run_id=f"r{number:04}",
            step_index=0,
            pattern_id=name,
            owner=owner,
            version=1,
            share=0.5,
            given=True,
            similarity=1.0,
            key=key,
            state="INIT",
        )
        await talk(stores, number, words, decisions=(decision,))
    settled = await stores.learning.decisions(owner, name)
    assert [each.recurred for each in settled] == [True, False]
    await stores.close()


async def test_a_rule_that_two_people_say_is_tried_in_runs(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Said by two keys in other words it is tried, in whole runs with it and without it; those in
    which a person has to correct the agent count against their arm, and success counts, too."""
    upstream.default = pusher
    where = str(tmp_path / "runs.db")
    learning = {"trials": "on", "interval_s": 0.02}
    stores = await open_stores(StorageSettings(path=where))
    made = [make_key("default", name) for name in ("ann", "ben")]
    for each in made:
        await stores.keys.add_key(each.record)
    ann, ben = (each.text for each in made)
    gateway = gateway_server({**PLAIN, "storage": {"path": where}, "learning": learning})
    here, url = "Working directory: /home/ann/shop", gateway.base_url
    await sent(upstream, url, "ann", here, "Fix it.", key=ann, then=f"no, {SAID[0]}")
    await sent(upstream, url, "ben", here, "Add a page.", key=ben, then="use pnpm instead of npm!")

    async def rule(ready: Callable[[StoredLesson], bool]) -> StoredLesson:
        while True:
            found = await rules(stores)
            if found and ready(found[0]):
                return found[0]
            await asyncio.sleep(0.02)

    async with asyncio.timeout(60):
        tried = await rule(lambda each: each.reason.startswith("supported"))
        assert (tried.support.keys, tried.support.tasks) == (2, 2)
        given = []
        for number in range(12):
            then = f"no, {SAID[0]}" if number % 3 == 0 else ""
            how = {"key": ann, "then": then, "outcome": "failure" if then else "success"}
            calls = await sent(upstream, url, f"run-{number}", here, f"Go {number}", **how)
            given.append(RULE in str(calls[0]))
            assert all((RULE in str(call)) == given[-1] for call in calls[:2])
        found = (await rule(lambda each: each.posterior.decisions >= 12)).posterior
    assert 0 < found.given < found.decisions
    assert None not in (found.rate_given, found.rate_held, found.success_given, found.success_held)
    await asyncio.to_thread(gateway.stop)
    learner = Learner(stores.learning, stores.runs, stores.states, LearningSettings)
    name = tried.pattern.pattern_id
    runs = {row.run_id for row in await stores.learning.evidence("default", name)}
    assert texts_with(where, RULE) >= {"patterns", "injections", "conversations"}
    gone = [await learner.forget(None, run) for run in sorted(runs)]
    assert gone[-1] == [name]
    assert texts_with(where, RULE) == set()
    await stores.close()


def texts_with(path: str, text: str) -> set[str]:
    """The tables of a database in which a text occurs."""
    connection = apsw.Connection(path)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    rows = {str(name): str(list(connection.execute(f"SELECT * FROM {name}"))) for (name,) in tables}
    connection.close()
    return {name for name, found in rows.items() if text in found}


async def test_an_approved_rule_stays_although_it_harms() -> None:
    """The machine retires it neither for harm nor with time; its page says that it harms."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    await talk(stores, 0, SAID[0])
    (rule,) = await rules(stores)
    await LessonActions(stores.learning).move(rule, Status.TRIAL, f"approved {BY_OPERATOR}", 1.0)
    owner, name = "default", rule.pattern.pattern_id
    harmful = Posterior(decisions=120, given=100, helps=0.0, harms=0.99)
    await stores.learning.put_posterior(owner, name, 1, harmful, 2.0)
    await stores.learning.prolong(owner, name, 3.0)
    (rule,) = await rules(stores)
    assert next_move(rule, 4.0, trials=True) is None
    reason = why_not_active(rule, trials=True)
    assert reason == "an operator approved it, but harms with probability 0.99"
    assert rule.pattern.lesson is not None
    unapproved = replace(rule, reason="helps")
    assert next_move(unapproved, 4.0, trials=True) is not None
    await stores.close()


@pytest.mark.parametrize("reason", ["taken back in run r9", "expired: not given for too long"])
async def test_a_rule_that_is_said_again_returns(reason: str) -> None:
    """Later than it was taken back or expired; no run from before does that, and no run what an
    operator retired, whose page says that it was said again."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    await talk(stores, 0, SAID[0])

    async def retired(reason: str, day: int) -> StoredLesson:
        (rule,) = await rules(stores)
        at = START + day * DAY_S
        await stores.learning.move(
            "default", rule.pattern.pattern_id, RETIRED, reason=reason, at=at
        )
        return (await rules(stores))[0]

    def now(rule: StoredLesson) -> Status | None:
        return rule.pattern.lesson.status if rule.pattern.lesson else None

    await retired(reason, 1)
    await talk(stores, 1, SAID[0])
    await read_again(stores, ["r0000", "r0001"])
    assert now((await rules(stores))[0]) is RETIRED
    await talk(stores, 2, SAID[0], day=2)
    (rule,) = await rules(stores)
    assert (now(rule), rule.reason) == (Status.CANDIDATE, "said again in run r0002")
    assert rule.pattern.lesson is not None
    assert (rule.pattern.lesson.expires_at or 0) > START + 2 * DAY_S
    await retired(f"retired {BY_OPERATOR}", 3)
    await talk(stores, 3, SAID[0], day=4)
    (rule,) = await rules(stores)
    assert now(rule) is RETIRED
    assert why_not_active(rule, trials=True) == f"retired {BY_OPERATOR}, and said again since"
    await stores.close()


async def test_a_forgotten_run_is_not_repeated_by_a_later_one() -> None:
    """A later run of the conversation that holds its messages, too, teaches nothing of them, and
    brings no verdict on it back; the same words in another conversation teach."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    opening = PromptMessage(role="system", text="Working directory: /home/ann/shop")
    said = PromptMessage(role="user", text=f"no, {SAID[0]}")
    learner = Learner(stores.learning, stores.runs, stores.states, LearningSettings)
    for conversation in ("c0001", "c0002"):
        version = 0
        for number, messages in enumerate([(opening,), (said,), (opening, said)]):
            run_id = f"{conversation}.{number}"
            content = some_content(messages=messages, human=(), actions=())
            steps = (a_first_step(run_id, content=content),)
            run = a_run(run_id, sequence=number, state="END", ended_at=START + number)
            talked = a_conversation(conversation, version=version)
            version = await stores.states.commit(
                a_call(conversation=talked, runs=(run,), steps=steps)
            )
        for number in range(2):
            await learner.read(f"{conversation}.{number}", None)
        if conversation == "c0001":
            assert len(await rules(stores)) == 1
            for number in range(2):
                await learner.forget(TENANT, f"{conversation}.{number}")
        await learner.read(f"{conversation}.2", None)
        assert len(await rules(stores)) == (conversation == "c0002")
    assert await stores.learning.outcomes(TENANT, "c0001.1") == []
    await stores.close()


async def test_a_customer_states_no_rule() -> None:
    """Who talks with an agent without a folder and a shell may be its customer: there only what
    names a tool that the agent called is a rule of the project."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    orders = (action("get_order", order="17"),)
    for number, words in enumerate(
        (
            "always answer in French",
            "always call get_order first",
            "always put get_order in checks/",
        )
    ):
        human = (Intervention(kind="reject", words=words),)
        opening = PromptMessage(role="system", text="You answer the customers of a shop.")
        content = some_content(messages=(opening,), actions=orders, human=human)
        run_id = f"r{number:04}"
        steps = (a_first_step(run_id, content=content), a_step(1, run_id, content=content))
        await stores.states.commit(one_run(number, steps=steps, tenant="default"))
        await read_again(stores, [run_id])
    found = await rules(stores)
    assert [rule.pattern.fields["recommended_action"] for rule in found] == [
        "Always call get_order first."
    ]


async def test_rules_of_old_sessions_live_from_their_import_on() -> None:
    """What was said a year ago, and is learned today, is not retired as never given."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    await talk(stores, 0, SAID[0], read=False)
    settings = LearningSettings()
    where = (stores.learning, stores.runs, stores.states)
    today = START + 365 * DAY_S
    learner = Learner(*where, lambda: settings, now=lambda: today)
    await learner.read("r0000", None)
    await learner.review()
    (rule,) = await rules(stores)
    assert rule.pattern.lesson is not None
    assert (rule.pattern.lesson.status, rule.reason) == (Status.CANDIDATE, "")
