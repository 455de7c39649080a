"""`gateway forget`: nothing of a session is left in what the gateway wrote, and nothing brings it
back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.cli import main
from gateway.config import settings_from_dict
from gateway.config.storage import StorageSettings
from gateway.features.learning.forget import forget as forget_in
from gateway.features.store_outages.spool import Waiting
from gateway.features.store_outages.spool_file import SpoolFolder
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.records import CallRecord
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.claude_code_sessions import Log, write_all
from steering_gateway_testing.control_plane import (
    CONTROL,
    a_finished_run,
    client_of,
    operator_of,
)
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.learning import a_lesson, some_evidence
from tests.api.conftest import Start, with_keys
from tests.api.conftest import start as start
from tests.api.test_events import ACME, GLOBEX, Listener
from tests.stores.conftest import stores as stores

Run = Callable[..., str]
CANARY = "plumbagozephyr"


@pytest.fixture
def forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `gateway forget` on a file, with the key of this process, and give what it printed."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(tmp_path / "log.db"))
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", CONTROL["x-gateway-key"])

    def run(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(["forget", *words]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


@pytest.fixture
def gateway(start: Start, tmp_path: Path) -> AppServer:
    """A gateway that keeps all it can in a file."""
    return start(storage={"path": str(tmp_path / "log.db"), "raw_mb": 8})


def talk(
    gateway: AppServer,
    upstream: ScriptedUpstream,
    word: str,
    session: str,
    messages: list[dict[str, Any]] | None = None,
    author: str = "cy",
) -> str:
    """A session in which every text has a word, which may go on; the id of its conversation."""
    own = {"x-session-id": session, "x-gateway-tag-author": author}
    if messages is None:
        messages = []
    messages.append({"role": "user", "content": f"Find the {word}."})
    tools = [{"type": "function", "function": {"name": "bash"}}]
    with client_of(gateway) as client:
        for number in range(4):
            call = ToolCall("bash", json.dumps({"command": f"cat {word}"}), id=f"call_{number}")
            upstream.default = Reply(f"I look for the {word}.", tool_calls=(call,))
            body = {"model": "gpt-4o", "messages": messages, "tools": tools}
            answer = client.post("/v1/chat/completions", json=body, headers=own)
            answer.raise_for_status()
            result = {"tool_call_id": call.id, "content": f"Error: no {word} here"}
            messages += [answer.json()["choices"][0]["message"], {"role": "tool", **result}]
    return str(answer.headers["x-gateway-conversation-id"])


def left(folder: Path, word: str = CANARY) -> list[str]:
    """The files of a folder in which a word is."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [str(path.relative_to(folder)) for path in files if word.encode() in path.read_bytes()]


def test_nothing_is_left_in_the_file_while_a_gateway_serves(
    gateway: AppServer, upstream: ScriptedUpstream, forget: Run, tmp_path: Path
) -> None:
    """Neither in its free pages, nor in its log, nor in the index of words; others stay."""
    name = talk(gateway, upstream, CANARY, "s-1")
    other = talk(gateway, upstream, "marigold", "s-2")
    with operator_of(gateway) as client:
        client.post(f"/api/runs/{name}.0/comments", json={"comment": CANARY}).raise_for_status()
    assert left(tmp_path)
    printed = forget("--session", name, "--yes")
    assert "conversations 1" in printed
    assert "out of reach" in printed
    assert left(tmp_path) == []
    with operator_of(gateway) as client:
        assert client.get(f"/api/runs/{name}.0").status_code == 404
        assert client.get(f"/api/runs/{other}.0").status_code == 200
        assert name not in client.get("/api/conversations").text
        acts = client.get("/api/audit?kind=session").json()["acts"]
    assert [(act["act"], act["subject"]) for act in acts] == [("forget", name)]
    assert left(tmp_path, "marigold")


def test_a_session_that_goes_on_is_answered_and_not_stored(
    gateway: AppServer, upstream: ScriptedUpstream, forget: Run, tmp_path: Path
) -> None:
    """The gateway has its conversation in memory: no call of it is written again."""
    messages: list[dict[str, Any]] = []
    name = talk(gateway, upstream, CANARY, "s-1", messages)
    forget("--session", "s-1", "--yes")
    assert talk(gateway, upstream, CANARY, "s-1", messages) == name
    again = talk(gateway, upstream, CANARY, "s-1")  # with another history under the same id
    assert again != name
    with operator_of(gateway) as client:
        assert client.get("/api/runs").json()["runs"] == []
        assert client.get("/api/conversations").json()["conversations"] == []
        assert client.get("/readyz").json()["status"] == "ready"
    assert left(tmp_path) == []


def test_it_may_be_repeated_and_an_unknown_name_is_an_error(
    gateway: AppServer, upstream: ScriptedUpstream, forget: Run
) -> None:
    """A session by each of its ids, and what nobody knows."""
    name = talk(gateway, upstream, CANARY, "s-1")
    assert "conversations 1" in forget("--session", f"{name}.0", "--yes")
    for known in (name, f"{name}.0", "s-1"):
        assert "forgotten before" in forget("--session", known, "--yes")
    assert "nothing is known of the session 's-9'" in forget("--session", "s-9", "--yes", status=2)
    assert "nothing is known" in forget("--person", "nobody", "--yes", status=2)


def test_nothing_happens_unless_it_is_confirmed(
    gateway: AppServer, upstream: ScriptedUpstream, forget: Run, tmp_path: Path
) -> None:
    """Without a terminal to ask at, --yes is needed; what is forgotten has to be named."""
    name = talk(gateway, upstream, CANARY, "s-1")
    said = forget("--session", name, status=2)
    assert said.startswith(f"gateway: the session {name!r} will be erased for good. Nothing is")
    assert "--yes" in said
    with pytest.raises(SystemExit):
        forget("--yes")
    assert left(tmp_path)


def test_all_sessions_of_a_person_go(
    gateway: AppServer, upstream: ScriptedUpstream, forget: Run, tmp_path: Path
) -> None:
    """By the tag `author`; those of others stay, and so do sums."""
    names = [talk(gateway, upstream, CANARY, f"s-{n}", author="ada") for n in range(3)]
    other = talk(gateway, upstream, "marigold", "s-9", author="bob")
    found = json.loads(forget("--person", "ada", "--yes", "--json"))
    assert found["erased"]["conversations"] == 3
    assert left(tmp_path) == []
    with operator_of(gateway) as client:
        assert client.get(f"/api/runs/{names[0]}.0").status_code == 404
        assert client.get(f"/api/runs/{other}.0").status_code == 200
        assert client.get("/api/usage?by=model").json()
    assert "forgotten before" in forget("--person", "ada", "--yes")


def test_the_api_and_the_page_do_the_same(
    gateway: AppServer, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """With the operator's key; in the file nothing is left, in the audit log who and when."""
    names = [talk(gateway, upstream, CANARY, f"s-{n}") for n in range(3)]
    with client_of(gateway) as client:
        refused = client.post("/api/sessions/forget", json={"subject": names[0]})
        assert refused.status_code in (401, 403)
    with operator_of(gateway) as client:
        body = {"subject": names[0], "author": "Ada", "reason": "asked to"}
        answer = client.post("/api/sessions/forget", json=body).json()
        assert answer["erased"]["conversations"] == 1
        body = {"subject": f"{names[1]}.0"}
        assert client.post("/api/sessions/forget", json=body).json()["erased"]["runs"] == 1
        gone = client.post("/api/sessions/forget", json={"subject": "unknown"})
        assert gone.status_code == 404
        page = client.get(f"/dashboard/runs/{names[2]}.0").text
        assert f'action="/dashboard/runs/{names[2]}.0/forget"' in page
        form = {"sure": "yes", "reason": "asked to"}
        answer = client.post(f"/dashboard/runs/{names[2]}.0/forget", data=form)
        assert answer.status_code == 303
        assert client.post("/dashboard/runs/unknown/forget", data=form).status_code == 404
        acts = client.get("/api/audit").json()["acts"]
    assert {act["subject"] for act in acts} >= {names[0], f"{names[1]}.0", f"{names[2]}.0"}
    assert ("Ada", "asked to") in {(act["author"], act["reason"]) for act in acts}
    assert left(tmp_path) == []


@with_keys
def test_a_tenant_hears_that_a_session_of_its_own_is_gone(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """Also when the operator, whose key is of no tenant, has forgotten it; another one does not."""
    server = start(auth={"gateway_keys": {"acme": ACME, "globex": GLOBEX}})
    run_id = a_finished_run(server, upstream, key=ACME)
    other = Listener(server, GLOBEX)
    ours = Listener(server, ACME)
    with operator_of(server) as client:
        found = client.post("/api/sessions/forget", json={"subject": run_id}).json()
    assert found["tenants"] == ["acme"]
    (_, event) = ours.end(2)[1]
    assert (event["type"], event["tenant"], event["result"]) == ("session", "acme", "forgotten")
    assert [name for name, _ in other.end(1)] == ["ready"]


def test_a_log_on_disk_does_not_bring_it_back(
    forget: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gateway history --keep` leaves out what was forgotten, with its sub-agents."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    log = Log().user(f"Find the {CANARY}.").bash("ls", CANARY).answer(CANARY)
    agent = Log(sub_agent="a1").user(f"Look for the {CANARY} in the sources.").answer(CANARY)
    write_all([log, agent], home)
    assert main(["history", "--keep"]) == 0
    assert (tmp_path / "log.db").exists()
    assert "conversations 2" in forget("--session", log.id, "--yes")
    database = tmp_path / "log.db"
    assert CANARY.encode() not in database.read_bytes()
    assert main(["history", "--keep"]) == 0
    assert "2 forgotten" in capsys.readouterr().out
    assert CANARY.encode() not in database.read_bytes()
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT count(*) FROM runs").fetchone()
    assert rows == (0,)


SETTINGS = settings_from_dict({"storage": {"path": ":memory:"}})


def a_call(number: int, *, root: str | None = None, key: str = "", version: int = 0) -> CallRecord:
    """A call of a run of a key; `root`: the conversation at the root of its sub-agent's tree."""
    call = records.one_run(number, key_name=key)
    tree = {"root_id": root, "parent_id": root, "external_key": f"s-{number}"}
    return replace(call, conversation=replace(call.conversation, version=version, **tree))


async def run_ids(stores: Stores) -> list[str]:
    """The runs in the log."""
    page = await stores.runs.list_runs(RunFilter(), PageRequest(descending=False))
    return [run.id for run in page.runs]


async def test_a_session_goes_with_its_sub_agents_and_takes_no_more_calls(stores: Stores) -> None:
    """In both databases: by the id of any part, of calls that other gateways still have, too."""
    for call in (a_call(1), a_call(2, root="c0001"), a_call(3, root="c0002"), a_call(4)):
        await stores.states.commit(call)
    found = await forget_in(stores, SETTINGS, "r0003", tenant=None, person=False)
    assert found is not None
    assert found["erased"]["conversations"] == found["erased"]["runs"] == 3
    assert found["erased"]["steps"] == 6
    assert await run_ids(stores) == ["r0004"]
    for late in (a_call(1, version=1), a_call(2, root="c0001", version=1), a_call(1)):
        assert await stores.states.commit(late) == late.conversation.version + 1
    assert await stores.states.commit(a_call(5, root="c0001")) == 1
    assert await stores.states.commit(a_call(5, root="c0001", version=1)) == 2
    assert await run_ids(stores) == ["r0004"]
    tenant = records.TENANT
    assert await stores.states.load(tenant, "c0001") is None
    assert await stores.states.branches(tenant, "s-1") == []
    listed = await stores.runs.list_conversations(tenant=None)
    assert [each.id for each in listed.conversations] == ["c0004"]
    again = await forget_in(stores, SETTINGS, "s-1", tenant=None, person=False)
    assert again is not None
    assert not any(again["erased"].values())
    assert await forget_in(stores, SETTINGS, "s-9", tenant=None, person=False) is None


async def test_it_stays_forgotten_when_old_runs_are_removed(stores: Stores) -> None:
    """Retention removes neither the row that stays nor what is refused for it."""
    await stores.states.commit(a_call(1))
    await forget_in(stores, SETTINGS, "c0001", tenant=None, person=False)
    await stores.runs.prune(older_than=records.START + 1e9)
    assert await stores.states.commit(a_call(1)) == 1
    assert await run_ids(stores) == []


async def test_what_a_removed_run_of_a_person_taught_goes(stores: Stores) -> None:
    """Retention has removed the run, and the lesson was there still."""
    await stores.states.commit(a_call(1, key="ada"))
    evidence = some_evidence(run="r0001", key_name="ada")
    await stores.learning.learn([(a_lesson(), (evidence,))])
    await stores.runs.prune(older_than=records.START + 1e9)
    assert await run_ids(stores) == []
    found = await forget_in(stores, SETTINGS, "ada", tenant=None, person=True)
    assert found is not None
    assert found["erased"]["lessons"] == 1
    assert await stores.learning.lesson(records.TENANT, "e1-a") is None


async def test_a_tenant_forgets_only_what_is_its_own(stores: Stores) -> None:
    """A name of another tenant's is unknown to it."""
    await stores.states.commit(a_call(1, key="ada"))
    for person, name in ((False, "c0001"), (True, "ada")):
        assert await forget_in(stores, SETTINGS, name, tenant="other", person=person) is None
    assert await run_ids(stores) == ["r0001"]


async def test_the_runs_of_a_key_are_those_of_a_person(stores: Stores) -> None:
    """With the whole sessions that they are in."""
    calls = (a_call(1, key="ada"), a_call(2, root="c0001", key="bot"), a_call(3, key="bob"))
    for call in calls:
        await stores.states.commit(call)
    found = await forget_in(stores, SETTINGS, "ada", tenant=None, person=True)
    assert found is not None
    assert found["erased"]["conversations"] == 2
    assert await run_ids(stores) == ["r0003"]


def test_records_that_wait_in_files_of_ended_gateways_go(forget: Run, tmp_path: Path) -> None:
    """Those of the session alone, wherever the database is; no byte of them stays."""
    path = tmp_path / "log.db"

    async def before() -> None:
        stores = await open_stores(StorageSettings(path=str(path)))
        await stores.states.commit(a_call(1))
        await stores.close()

    asyncio.run(before())
    folder = SpoolFolder(Path(StorageSettings(path=str(path)).spool_folder), "normal")
    waiting = [with_words(a_call(1, version=1), CANARY), with_words(a_call(7), "marigold")]
    entries = [Waiting(call, asyncio.Event()) for call in waiting]
    folder.write(dict.fromkeys(entries), lambda call: call)
    folder.close()
    assert len(left(tmp_path)) == len(left(tmp_path, "marigold")) == 1
    assert "records that waited 1" in forget("--session", "c0001", "--yes")
    assert left(tmp_path) == []
    assert len(left(tmp_path, "marigold")) == 1


def with_words(call: CallRecord, word: str) -> CallRecord:
    """A call with a word in the texts of its steps."""
    content = records.some_content(thought=f"{word} " * 3000)  # of several pages of a file
    steps = [replace(each, content=content) for each in call.steps]
    return replace(call, steps=tuple(steps))
