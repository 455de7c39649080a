"""Stop, pause and resume: a run, a tree; by API and command; on another gateway, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.patience import ANSWER_S, until

Start = Callable[..., AppServer]
CALLING = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
SUB = {"x-session-id": "sub", "x-parent-session-id": "main"}
MAIN = {"x-session-id": "main"}


def ask(server: AppServer, headers: dict[str, str], step: int = 0, **body: Any) -> httpx.Response:
    """One call of an agent; `step` results of earlier ones are in its history."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {headers}"}]
    for number in range(step):
        call = {"name": "ls", "arguments": "{}"}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": "Look.", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "a file"})
    fields = {"model": "m", "messages": messages, **body}
    url = f"{server.base_url}/chat/completions"
    return httpx.post(url, json=fields, headers=headers, timeout=120)


def control(server: AppServer, subject: str, verb: str, kind: str = "conversations") -> Any:
    """What the control plane answers."""
    answer = httpx.post(
        f"{server.url}/api/{kind}/{subject}/{verb}", json={"reason": "it loops"}, headers=CONTROL
    )
    return answer.json()


@pytest.fixture
def pair(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> tuple[AppServer, AppServer]:
    """Two gateways on one file."""
    upstream.default = CALLING
    settings = {
        "storage": {"path": str(tmp_path / "both.db")},
        "control": {"poll_s": 0.1, "pause_wait_s": 0.2, "pause_retry_s": 7},
        "budgets": [],
    }
    return gateway_server(settings), gateway_server(settings)


def test_a_tree_is_stopped_and_resumed_on_every_gateway(
    pair: tuple[AppServer, AppServer], upstream: ScriptedUpstream
) -> None:
    """A stopped conversation takes its sub-agents with it, until it is resumed; it is durable."""
    first, second = pair
    main_id = ask(first, MAIN).headers["x-gateway-conversation-id"]
    assert ask(first, SUB).status_code == 200
    assert control(first, main_id, "stop")["stored"] is True

    sent = len(upstream.requests)
    refused = ask(first, SUB, 1)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "run_stopped")
    assert "it loops" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    until(lambda: second.app.runtime.holds.listed() != ())
    assert ask(second, MAIN, 1).json()["error"]["code"] == "run_stopped"
    assert len(upstream.requests) == sent

    control(second, main_id, "resume")
    until(lambda: not first.app.runtime.holds)
    assert ask(first, MAIN, 1).status_code == 200


def test_one_run_is_stopped_by_its_id(pair: tuple[AppServer, AppServer]) -> None:
    """The sub-agent's run is held, its parent goes on; the next run of the sub-agent goes on."""
    first, _ = pair
    ask(first, MAIN)
    sub_id = ask(first, SUB).headers["x-gateway-conversation-id"]
    held = control(first, f"{sub_id}.0", "stop", kind="runs")
    assert (held["subject"], held["action"]) == (f"{sub_id}.0", "stop")
    assert ask(first, SUB, 1).status_code == 429
    assert ask(first, MAIN, 1).status_code == 200
    missing = httpx.post(f"{first.url}/api/runs/none/stop", json={}, headers=CONTROL)
    assert missing.status_code == 404
    listed = httpx.get(f"{first.url}/api/held").json()["held"]
    assert [(each["subject"], each["reason"]) for each in listed] == [(f"{sub_id}.0", "it loops")]


def test_a_paused_run_waits_and_goes_on(
    gateway_server: Start, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call waits for the resume, which may come from a terminal; too long a wait ends in 429."""
    upstream.default = CALLING
    server = gateway_server({"control": {"poll_s": 0.1, "pause_wait_s": 120, "pause_retry_s": 7}})
    main_id = ask(server, MAIN).headers["x-gateway-conversation-id"]
    path = server.app.runtime.settings.storage.path
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEWAY_STORAGE__PATH", path)
        assert main(["runs", "pause", main_id, "--reason", "lunch"]) == 0
        until(lambda: bool(server.app.runtime.holds))
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(ask(server, MAIN, 1)))
        waiting.start()
        waiting.join(0.5)
        assert (answers, len(upstream.requests)) == ([], 1)
        assert main(["runs", "held"]) == 0
        assert main(["runs", "resume", main_id]) == 0
        waiting.join(ANSWER_S)
    assert answers[0].status_code == 200
    assert f"{main_id}  pause" in capsys.readouterr().out


def test_a_wait_that_is_too_long(pair: tuple[AppServer, AppServer]) -> None:
    """After `control.pause_wait_s` the call is refused, with when to try again."""
    first, _ = pair
    main_id = ask(first, MAIN).headers["x-gateway-conversation-id"]
    control(first, main_id, "pause")
    refused = ask(first, MAIN, 1)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "run_paused")
    assert refused.headers["retry-after"] == "7"
    control(first, main_id, "stop")
    assert ask(first, MAIN, 1).json()["error"]["code"] == "run_stopped"


def test_why_something_may_go_on_is_repeated_and_kept(pair: tuple[AppServer, AppServer]) -> None:
    """The replies to a resume and to steering switched on have reason and author, as the audit log
    has."""
    first, _ = pair
    main_id = ask(first, MAIN).headers["x-gateway-conversation-id"]
    said = {"reason": "it was a typo", "author": "ann"}
    for off, on in (
        ("steering/off", "steering/on"),
        (f"conversations/{main_id}/stop", f"conversations/{main_id}/resume"),
    ):
        httpx.post(f"{first.url}/api/{off}", json={}, headers=CONTROL)
        answer = httpx.post(f"{first.url}/api/{on}", json=said, headers=CONTROL).json()
        assert (answer["action"], answer["reason"], answer["author"]) == (None, *said.values())
        verb = on.rpartition("/")[2]

        def noted(verb: str = verb) -> list[tuple[str, str]]:
            acts = httpx.get(f"{first.url}/api/audit", headers=CONTROL).json()["acts"]
            return [(each["reason"], each["author"]) for each in acts if each["act"] == verb]

        until(lambda: noted() == [tuple(said.values())])
