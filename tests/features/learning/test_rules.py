"""Rules of a project: to which runs they are given, where, and who approves them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.backends import Stores, open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.core.guidance_choice import LessonQuery
from gateway.core.guidance_text import FRAME_OPEN
from gateway.core.pattern import Status
from gateway.core.step import Action
from gateway.features.learning.context import instructed
from gateway.features.learning.lessons_in_memory import LessonBook
from gateway.features.learning.life_cycle import (
    BY_OPERATOR,
    LessonActions,
    next_move,
    why_not_active,
)
from gateway.steering.guidance.lessons import STATED
from gateway.stores.learning import LessonFilter, Posterior, StoredLesson
from gateway.stores.records import PromptMessage
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, TOOLS
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.diffs import APPLY
from steering_gateway_testing.store_conformance import records
from tests.api.conftest import start
from tests.features.learning.runs import mark, state
from tests.features.learning.test_context import action
from tests.features.learning.test_pages import ACME, ADMIN, KEYS

__all__ = ["start"]
Start = Callable[..., AppServer]
RULE = "Use pnpm instead of npm."
RULES = (
    RULE,
    "Do not force push to main.",
    "Before `git push`, run the linter.",
    "Avoid adding comments everywhere.",
    "Always run the tests before you commit.",
    "Do not delete the tests.",
    "Before you push, run the formatter.",
)


def reminder(instructions: str) -> str:
    """A CLAUDE.md as Claude Code puts it before the task."""
    return (
        "<system-reminder>\nAs you answer the user's questions, you can use the following:\n"
        f"# claudeMd\nContents of /home/ann/shop/CLAUDE.md (project):\n\n{instructions}"
        "\n\n      IMPORTANT: this context may or may not be relevant to your tasks.\n"
        "</system-reminder>\n"
    )


async def rules(stores: Stores) -> list[StoredLesson]:
    found = await stores.learning.lessons(LessonFilter(key_prefix="said|"))
    return sorted(found, key=lambda each: -each.support.conversations)


async def taught(
    database: Path, stated: Sequence[str] = RULES, tenant: str = "default", *, approved: bool = True
) -> None:
    """A project whose people stated these rules, the first most often, all approved."""
    stores = await open_stores(StorageSettings(path=str(database)))
    number = 0
    for place, text in enumerate(stated):
        for _ in range(1 + (place == 0)):
            await state(stores, number, text, tenant=tenant)
            number += 1
    actions = LessonActions(stores.learning)
    for each in await rules(stores) if approved else ():
        await actions.move(each, Status.TRIAL, "approved by the operator", 1.0)
        await stores.learning.learn([(each.pattern, [mark(each.pattern.pattern_id)])])
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
    outcome: str = "",
) -> list[dict[str, Any]]:
    """The bodies that leave in one run: the first call, and the one after `git commit`."""
    before = len(upstream.requests)
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    async with httpx.AsyncClient(timeout=120) as http:
        for turn in range(2):
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
    after a call like the marked one a reminder; another project gets nothing."""
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
    system = "Working directory: /home/ann/shop\nHere we use `pnpm` instead of `npm`."
    for number in range(4):
        user = reminder("- Before `git push`, run the linter, please.") + "Fix it."
        for body in await sent(upstream, gateway.base_url, f"own-{number}", system, user):
            assert "Use pnpm instead of npm." not in str(body)
            assert "run the linter." not in str(body)


async def test_the_task_may_say_a_rule(gateway: AppServer, upstream: ScriptedUpstream) -> None:
    """A run that is told the rule by its task needs it later, when the task is far away."""
    here = "Working directory: /home/ann/shop"
    bodies = [
        await sent(upstream, gateway.base_url, f"task-{number}", here, f"Fix it. {RULE}")
        for number in range(6)
    ]
    assert any(f"{STATED}: {RULE}" in str(first) for first, _ in bodies)


LINTER = "Run the linter before you push."


@pytest.mark.parametrize(
    ("role", "own", "says"),
    [
        ("system", f"You are Codex. {LINTER}", True),
        ("developer", "- run the linter before each push", True),
        ("system", "Push before you run the linter.", False),
        ("system", "Push often. Run it. Linter: ruff.", False),
        ("user", LINTER, False),
        ("user", f"Fix it.\n\n{LINTER}\nThen push.", False),
        (
            "user",
            f"# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\n{LINTER}\n</INSTRUCTIONS>",
            True,
        ),
        ("user", f"<user_instructions>\n\n{LINTER}\n\n</user_instructions>", True),
        ("user", reminder(LINTER), True),
        ("user", f"<system-reminder>\nThe list is empty. {LINTER}\n</system-reminder>", False),
        ("user", f"<environment_context>\n{LINTER}\n</environment_context>", False),
    ],
)
def test_what_instructions_say(role: str, own: str, says: bool) -> None:
    """System messages and instruction files, as clients send them; never the task."""
    assert instructed(LINTER, [PromptMessage(role=role, text=own)]) is says


def test_only_an_operator_approves(start: Start, tmp_path: Path) -> None:
    """The key that an agent has can change no rule; an operator's approval makes it active."""
    path = tmp_path / "acme.db"
    server = start(auth=KEYS, storage={"path": str(path), "retention_days": 0})
    asyncio.run(taught(path, RULES[:1], "acme", approved=False))
    with client_of(server, ACME) as acme, client_of(server, ADMIN) as operator:
        (rule,) = acme.get("/api/lessons").json()["lessons"]
        at, form = f"lessons/{rule['pattern_id']}", {"action": "approve"}
        assert (rule["status"], rule["advice"]) == ("candidate", "Use pnpm instead of npm.")
        assert rule["applies_when"] == {}, "who said it is for the operator"
        (known,) = operator.get("/api/lessons?tenant=acme").json()["lessons"]
        assert known["applies_when"]["author"] == "ann"
        assert acme.patch(f"/api/{at}", json={"status": "active"}).status_code == 403
        assert acme.post(f"/dashboard/{at}", data=form).status_code == 403
        origin = {"origin": server.url}
        assert acme.get(f"/api/{at}").json()["status"] == "candidate"
        page = operator.get("/dashboard/lessons").text
        assert "What your agents keep being told" in page
        assert all(
            word in page
            for word in ("<h3>shop</h3>", "Use pnpm instead of npm.", ">ann<", "typed 0 times")
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
        assert "typed 0 times in 0 sessions before, 0 in 0 since" in one
        assert "95 % interval" not in one, "a rule is not tried"
        assert "<q>please: Use pnpm instead of npm.</q>" in one
        assert "a trial of its own" not in one
        own = {"action": "edit", "advice": "Use pnpm for all."}
        operator.post(f"/dashboard/{at}?tenant=acme", data=own, headers=origin)
        page = operator.get("/dashboard/lessons").text
        assert "Use pnpm for all." in page
        assert ">Use pnpm instead of npm.<" not in page, "the version before is retired"


def applied(diff: str) -> None:
    subprocess.run(APPLY, input=diff.encode(), check=True, capture_output=True)


def test_a_typed_sentence_is_added_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person adds a rule in the typed words: it is given from now on, with author and day beside
    it; a second time changes nothing, and a text that no lesson may have is refused."""
    database, project = tmp_path / "runs.db", tmp_path / "shop"
    project.mkdir()
    asyncio.run(taught(database, ()))
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(database))
    add = ["learn", "add", "never open draft PRs", "--project", str(project), "--author", "ann"]
    for _ in range(2):
        assert main([*add, "--typed", "2026-02-03"]) == 0
    capsys.readouterr()
    monkeypatch.chdir(project)
    assert main(["learn", "rules", "--project", "shop", "--json"]) == 0
    (row,) = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["advice"], row["said"]) == ("never open draft PRs", "never open draft PRs")
    assert (row["status"], row["author"], row["origin"]) == ("active", "ann", "typed")
    assert row["last_confirmed_at"] == datetime(2026, 2, 3, tzinfo=UTC).timestamp()
    assert row["reason"] == "typed, and added by the operator"
    assert main(["learn", "rules", "--export", "CLAUDE.md"]) == 0
    beside = '<!-- typed 2026-02-03 by ann: "never open draft PRs" -->'
    assert f"+- never open draft PRs {beside}" in capsys.readouterr().out
    assert main(["learn", "add", "x" * 601]) == 2
    assert "600 characters" in capsys.readouterr().err
    assert main([*add, "--typed", "yesterday"]) == 2


def test_rules_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules that are given go into a project's file as a diff, and are given no more."""
    database, project = tmp_path / "runs.db", tmp_path / "shop"
    project.mkdir()
    (project / "AGENTS.md").write_text("# Shop\nNo end")
    asyncio.run(taught(database, RULES[:2]))
    monkeypatch.chdir(project)
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(database))
    assert main(["learn", "rules"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2
    assert all(word in listed[0] for word in ("shop", "active", "written down on", "ann", "pnpm"))
    assert main(["learn", "rules", "--export", "AGENTS.md"]) == 0
    printed = capsys.readouterr()
    applied(printed.out)
    *own, one, other = (project / "AGENTS.md").read_text().splitlines()
    assert own == ["# Shop", "No end", "", "## Rules", ""]
    day = datetime.fromtimestamp(records.START, UTC).date()
    assert one.startswith(f'- {RULE} <!-- typed {day} by ann: "please: {RULE}"')
    assert other.startswith(f"- Do not force push to main. <!-- typed {day}")
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
    await state(stores, 0, RULES[0])
    await state(stores, 1, RULES[1], folder=str(tmp_path))
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


async def test_a_rule_is_given_once_an_operator_approved_it() -> None:
    """However many people said it, also where an earlier version tried it; at the start of a run,
    and at calls like those that a person marked; an edited rule is given at once."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    opening = [PromptMessage(role="system", text="Working directory: /home/ann/shop")]

    async def given(*calls: Action) -> list[str]:
        book = LessonBook(stores.learning, failed=failed)
        query = LessonQuery(
            keys=(),
            exclude=frozenset(),
            begins=not calls,
            actions=calls,
            opening=lambda: opening,
        )
        return [match.pattern.pattern_id for match in await book.find(query, "default")]

    def failed(error: Exception) -> None:
        raise error

    for number, person in enumerate(("ann", "ben")):
        await state(stores, number, RULE, person=person)
    (rule,) = await rules(stores)
    name = rule.pattern.pattern_id
    assert await given() == []  # a candidate
    await stores.learning.move("default", name, Status.TRIAL, reason="two people", at=1.0)
    assert await given() == []
    (rule,) = await rules(stores)
    await stores.learning.move("default", name, Status.ACTIVE, reason=f"a {BY_OPERATOR}", at=2.0)
    before, other = action("Bash", command="git commit -m x"), action("Bash", command="ls src")
    assert (await given(), await given(before), await given(other)) == ([name], [], [])
    await stores.learning.learn([(rule.pattern, [mark(name)])])
    assert (await given(), await given(before), await given(other)) == ([name], [name], [])
    (marked,) = await rules(stores)
    assert marked.support == rule.support, "a mark is no saying"
    (rule,) = await rules(stores)
    edited = await LessonActions(stores.learning).edit(rule, "Use pnpm for all.", 2.0)
    assert await given() == await given(before) == [edited.pattern_id]
    await stores.close()


@pytest.mark.parametrize(
    "text", ["Log in with ghp_abcdefghijklmnopqrstuvwxyz0123456789.", f"Use pnpm. {FRAME_OPEN}"]
)
async def test_approval_gives_no_credential_and_no_frame(text: str) -> None:
    """The gate is asked again when a rule is given: a database may hold it from elsewhere."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    await state(stores, 1, text)
    (rule,) = await rules(stores)
    name = rule.pattern.pattern_id
    await stores.learning.move("default", name, Status.ACTIVE, reason=f"a {BY_OPERATOR}", at=2.0)
    opening = [PromptMessage(role="system", text="Working directory: /home/ann/shop")]
    query = LessonQuery(keys=(), exclude=frozenset(), begins=True, opening=lambda: opening)
    assert await LessonBook(stores.learning, failed=print).find(query, "default") == []
    await stores.close()


async def test_an_approved_rule_is_given_to_every_run(
    gateway: AppServer, upstream: ScriptedUpstream
) -> None:
    """Nothing is held back, whatever a trial would want, and no decision is stored."""
    here = "Working directory: /home/ann/shop"
    for number in range(12):
        for body in await sent(upstream, gateway.base_url, f"run-{number}", here, f"Go {number}"):
            assert f"{STATED}: {RULE}" in str(body)
    with client_of(gateway, "") as operator:
        found = operator.get("/api/lessons").json()["lessons"]
        (rule,) = (each for each in found if each["advice"] == RULE)
        assert operator.get(f"/api/lessons/{rule['pattern_id']}").json()["decisions"] == []


async def test_only_a_person_takes_a_rule_back() -> None:
    """An earlier version tried rules: what that came to retires none; its page says the harm."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    await state(stores, 0, RULE)
    (rule,) = await rules(stores)
    await LessonActions(stores.learning).move(rule, Status.TRIAL, f"approved {BY_OPERATOR}", 1.0)
    owner, name = "default", rule.pattern.pattern_id
    harmful = Posterior(decisions=120, given=100, helps=0.0, harms=0.99)
    await stores.learning.put_posterior(owner, name, 1, harmful, 2.0)
    (rule,) = await rules(stores)
    assert next_move(rule) is None
    reason = why_not_active(rule)
    assert reason.startswith("an operator approved it, but the failure comes again more often")
    await stores.close()
