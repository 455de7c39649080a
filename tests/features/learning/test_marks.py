"""A person marks a call, and the rule is given again at calls like it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.steering.guidance.lessons import STATED
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import client_of
from tests.api.conftest import start
from tests.features.learning.runs import shell, stored
from tests.features.learning.test_compactions import always_given
from tests.features.learning.test_pages import ACME, ADMIN, KEYS
from tests.features.learning.test_rules import pusher, rules, sent

__all__ = ["start"]
Start = Callable[..., AppServer]
RUN = "r0007"
CALLS = (shell("ls src", "a.py"), shell("git commit -m x", "1 file changed"))


async def a_run_and_a_rule(path: Path, tenant: str = "default") -> str:
    """A rule, and a run that commits in its second step; the rule's id."""
    await always_given(path, tenant)
    stores = await open_stores(StorageSettings(path=str(path)))
    for each in await rules(stores):
        for row in await stores.learning.marks(None):
            await stores.learning.unmark(tenant, row.pattern_id, row.run_id, row.step_index)
        name = each.pattern.pattern_id
    record = stored(7, CALLS)
    owner = record.conversation.tenant
    assert owner == "acme"
    await stores.states.commit(record)
    await stores.close()
    return name


def learn(*words: str) -> int:
    return main(["learn", "mark", *words, "--author", "Ann"])


async def test_a_rule_is_given_again_behind_calls_like_the_marked_one(
    start: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the command on, in later runs of the project, once in a run, behind the call's result;
    no more when the mark is taken back."""
    path = tmp_path / "runs.db"
    name = await a_run_and_a_rule(path, "acme")
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(path))
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN)
    upstream.default = pusher
    learning = {"trials": "on", "interval_s": 3600}

    async def reminded(run: str) -> list[int]:
        """How often each request of a run has the rule, the system prompt left out."""
        server = start(
            auth=KEYS, storage={"path": str(path), "retention_days": 0}, learning=learning
        )
        here = "Working directory: /home/ann/shop"
        bodies = await sent(upstream, server.base_url, run, here, key=ACME)
        await asyncio.to_thread(server.stop)
        return [str(body["messages"][1:]).count(STATED) for body in bodies]

    assert await reminded("before") == [0, 0]
    assert await asyncio.to_thread(learn, name, RUN, "2") == 0
    assert await asyncio.to_thread(learn, name, RUN, "2") == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["done", "nothing changed"]
    assert await reminded("marked") == [0, 1]
    assert await asyncio.to_thread(learn, name, RUN, "2", "--remove") == 0
    assert await reminded("unmarked") == [0, 0]
    for words, reason in (
        ((name, RUN, "9"), "step 9 of run 'r0007' has no call"),
        ((name, "r9999", "1"), "step 1 of run 'r9999' has no call"),
        (("e1-0", RUN, "2"), "there is no lesson 'e1-0'"),
    ):
        assert await asyncio.to_thread(learn, *words) == 2
        assert reason in capsys.readouterr().err


def test_a_mark_is_set_on_the_page_of_the_run(start: Start, tmp_path: Path) -> None:
    """Behind the step's calls is a link to the rules, each with a button; the rule's page shows
    the call, and forgetting the run takes the mark along."""
    path = tmp_path / "runs.db"
    name = asyncio.run(a_run_and_a_rule(path, "acme"))
    server = start(auth=KEYS, storage={"path": str(path), "retention_days": 0})
    with client_of(server, ADMIN) as operator:
        origin = {"origin": server.url}
        page = operator.get(f"/dashboard/runs/{RUN}").text
        assert f'href="/dashboard/lessons?mark={RUN}%20step%202"' in page
        chosen = operator.get("/dashboard/lessons", params={"mark": f"{RUN} step 2"}).text
        assert f"<code>{RUN} step 2</code>" in chosen
        assert f'name="call" value="{RUN} step 2"' in chosen
        at = f"/dashboard/lessons/{name}?tenant=acme"
        data = {"action": "mark", "call": f"{RUN} step 2"}
        assert operator.post(at, data=data, headers=origin).status_code == 303
        shown = operator.get(at).text
        assert "once behind a call like <code>git commit</code>" in shown
        assert "a person marked this call" in shown
        detail = operator.get(f"/api/lessons/{name}").json()
        assert detail["reminds_at"] == ["git commit"]
        wrong = operator.post(at, data=data | {"call": "x"}, headers=origin)
        assert (wrong.status_code, "There is no such call" in wrong.text) == (400, True)
        two = operator.patch(
            f"/api/lessons/{name}",
            json={"status": "active", "mark": {"run_id": RUN, "step": 2}},
        )
        assert two.json()["error"]["message"] == "give one of status, advice and mark"
        assert operator.post("/api/sessions/forget", json={"subject": RUN}).status_code == 200
        assert operator.get(f"/api/lessons/{name}").json()["reminds_at"] == []
