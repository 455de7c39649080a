"""A person is asked about a run: its call waits, and the answer decides."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.patience import until
from steering_gateway_testing.receiver import Receiver
from tests.api.test_events import Listener
from tests.examples import by_day
from tests.holds.test_holds import Start, ask

ADMIN = {"x-gateway-key": "a" * 40}
AGENT = {"x-gateway-key": "b" * 40, "x-session-id": "s"}
CALLING = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
LADDER = [{"at": 1.0, "do": "ask"}]
PER_RUN = {"name": "per-run", "scope": "run", "limits": {"calls": 2}, "ladder": LADDER}


def settings(path: Path | None = None, **more: Any) -> dict[str, Any]:
    control = {"poll_s": 0.1, "ask_wait_s": 60, **more.pop("control", {})}
    auth = {"admin_key": "a" * 40, "gateway_keys": {"acme": "b" * 40}}
    storage = {"storage": {"path": str(path)}} if path else {}
    return {"auth": auth, "budgets": [PER_RUN], "control": control, **storage, **more}


class Waiting:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except Exception as error:  # the test looks at it
            self.result = error

    def done(self, wait_s: float = 30) -> Any:
        """The result of the call."""
        self._thread.join(wait_s)
        assert not self._thread.is_alive()
        return self.result

    @property
    def waits(self) -> bool:
        """Whether it has no answer yet."""
        return self._thread.is_alive()


def questions(server: AppServer) -> list[dict[str, Any]]:
    """The open questions, as the control plane lists them."""
    held = httpx.get(f"{server.url}/api/held", headers=ADMIN).json()["held"]
    return [each for each in held if each["action"] == "ask"]


def asked(server: AppServer) -> str:
    """The id of the run about which there is a question, once there is one."""
    until(lambda: bool(questions(server)))
    (one,) = questions(server)
    return str(one["subject"])


def answer(server: AppServer, run: str, verb: str, headers: dict[str, str] = ADMIN) -> int:
    """The status of an answer."""
    url = f"{server.url}/api/runs/{run}/{verb}"
    said = {"reason": "too dear", "author": "ann"}
    return httpx.post(url, json=said, headers=headers).status_code


def answers(server: AppServer) -> list[tuple[str, ...]]:
    """What the audit log has of answers, oldest first."""
    acts = httpx.get(f"{server.url}/api/audit", headers=ADMIN).json()["acts"]
    of_runs = [act for act in reversed(acts) if act["kind"] in ("run", "approval")]
    return [tuple(act[name] for name in ("act", "subject", "author", "reason")) for act in of_runs]


def used_up(server: AppServer) -> None:
    """Make the calls that the budget has."""
    for step in range(2):
        assert ask(server, AGENT, step).status_code == 200


def test_a_yes_lets_the_call_go_out(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The client sees a slow call; a key of an agent answers nothing; the next question comes when
    the budget is used once more."""
    upstream.default = CALLING
    server = gateway_server(settings())
    used_up(server)
    call = Waiting(lambda: ask(server, AGENT, 2))
    run = asked(server)
    assert questions(server)[0]["reason"].startswith("budget per-run: 2 of the 2-call budget")
    for verb in ("approve", "deny", "resume", "stop"):
        assert answer(server, run, verb, AGENT) == 403
    page = httpx.get(f"{server.url}/dashboard/runs/{run}", headers=ADMIN).text
    now = httpx.get(f"{server.url}/dashboard", headers=ADMIN).text
    assert "Yes, let it go on" in page
    assert "Yes, let it go on" in now
    assert "waiting for an answer" in page
    assert "waiting for an answer" in now
    assert call.waits
    assert len(upstream.requests) == 2
    assert answer(server, run, "approve") == 200
    assert call.done().status_code == 200
    assert answer(server, run, "approve") == 404
    third = ask(server, AGENT, 3)
    assert third.status_code == 200, third.text
    again = Waiting(lambda: ask(server, AGENT, 4))
    asked(server)
    form = {"action": "deny", "reason": "too dear", "author": "ann"}
    page = f"{server.url}/dashboard/runs/{run}/control"
    assert httpx.post(page, data=form, headers={**ADMIN, "origin": server.url}).status_code == 303
    error = again.done().json()["error"]
    assert error["code"] == "run_stopped"
    assert "by the operator (ann): too dear" in error["message"]
    assert ask(server, AGENT, 4).json()["error"]["code"] == "run_stopped"
    assert len(upstream.requests) == 4
    said = [(verb, run, "ann", "too dear") for verb in ("approve", "deny")]
    assert answers(server) == said  # each once


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_an_operators_answer_is_heard_by_the_tenant(
    gateway_server: Start, upstream: ScriptedUpstream, verb: str
) -> None:
    """The live event of it is the run's tenant's, as that of a stop is."""
    upstream.default = CALLING
    server = gateway_server(settings())
    used_up(server)
    call = Waiting(lambda: ask(server, AGENT, 2))
    run = asked(server)
    listener = Listener(server, "b" * 40)
    assert answer(server, run, verb) == 200
    call.done()
    wanted = {"approve": "resume", "deny": "stop"}[verb]
    # The question itself may be heard before.
    until(lambda: any(said.get("action") == wanted for _, said in listener.events))
    heard = [said for kind, said in listener.end(1) if kind == "control"]
    assert {said["subject"] for said in heard} == {run}


def test_a_yes_answers_all_that_wait_for_one_account(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Two runs of one tenant ask whether its budget is raised: one answer is enough."""
    upstream.default = CALLING
    server = gateway_server(settings(budgets=[{**PER_RUN, "scope": "tenant"}]))
    used_up(server)
    other = {**AGENT, "x-session-id": "other"}
    calls = [Waiting(lambda: ask(server, AGENT, 2)), Waiting(lambda: ask(server, other, 0))]
    until(lambda: len(questions(server)) == 2)
    assert answer(server, questions(server)[0]["subject"], "approve") == 200
    assert [call.done().status_code for call in calls] == [200, 200]
    assert questions(server) == []


DIALECTS = {
    "chat": ("chat/completions", b": waiting\n\n", "[DONE]"),
    "messages": ("messages", b"event: ping\n", "message_stop"),
    "responses": ("responses", b": waiting\n\n", "response.completed"),
}


def stream(server: AppServer, kind: str, step: int) -> tuple[int, bytes]:
    """A streamed call in a dialect, with the bytes that came."""
    body: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": 50}
    said: list[dict[str, Any]] = [{"role": "user", "content": "a task"}]
    for number in range(step):
        said += [{"role": "assistant", "content": f"Step {number}."}]
        said += [{"role": "user", "content": f"Go on {number}."}]
    body["input" if kind == "responses" else "messages"] = said
    if kind == "responses":
        del body["max_tokens"]
    url = f"{server.base_url}/{DIALECTS[kind][0]}"
    reply = httpx.post(url, json=body, headers={**AGENT, "authorization": ""}, timeout=120)
    return reply.status_code, reply.content


TREE = {**PER_RUN, "scope": "tree"}


@pytest.mark.parametrize("verb", ["approve", "deny", "time out"])
@pytest.mark.parametrize("kind", by_day(DIALECTS, 1))
def test_a_stream_is_kept_alive_and_ends_as_one(
    gateway_server: Start, upstream: ScriptedUpstream, kind: str, verb: str
) -> None:
    """It begins at once with a ping; after a no, or no answer, it has the final answer."""
    upstream.default = Reply("Done so far.")
    wait_s = 1 if verb == "time out" else 60
    server = gateway_server(settings(budgets=[TREE], control={"ask_wait_s": wait_s}))
    for step in range(2):
        assert stream(server, kind, step)[0] == 200
    call = Waiting(lambda: stream(server, kind, 2))
    run = asked(server) if verb != "time out" else ""
    if run:
        assert answer(server, run, verb) == 200
    status, content = call.done()
    _, ping, end = DIALECTS[kind]
    text = content.decode()
    assert status == 200
    assert content.startswith(ping)
    assert text.rstrip().splitlines()[-1].find(end) >= 0
    assert ("Done" in text) == (verb == "approve")
    assert ("Stopped by the gateway" in text) == (verb != "approve")
    if verb == "time out":
        assert "nobody answered within 1 s: budget per-run" in text
        (held,) = httpx.get(f"{server.url}/api/held", headers=ADMIN).json()["held"]
        assert held["action"] == "stop"
        runs = httpx.get(f"{server.url}/api/runs?stopped=ask", headers=ADMIN).json()["runs"]
        assert [r["stopped"]["by"] for r in runs] == ["ask"]


def test_without_an_answer_it_may_go_on(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """`control.ask_default: go_on` raises the budget, as a yes does."""
    upstream.default = CALLING
    server = gateway_server(settings(control={"ask_wait_s": 0.5, "ask_default": "go_on"}))
    used_up(server)
    assert [ask(server, AGENT, step).status_code for step in (2, 3)] == [200, 200]
    assert not questions(server)


def test_a_stop_in_the_ladder_asks_first(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A budget that would refuse a call asks, if its ladder has such a step."""
    upstream.default = CALLING
    ladder = [{"at": 0.9, "do": "ask"}, {"at": 1.0, "do": "stop"}]
    server = gateway_server(settings(budgets=[{**PER_RUN, "ladder": ladder}]))
    used_up(server)
    call = Waiting(lambda: ask(server, AGENT, 2))
    assert answer(server, asked(server), "approve") == 200
    assert call.done().status_code == 200


def test_two_gateways_on_one_database(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """Asked at one, answered at the other, by a yes and by a no."""
    upstream.default = CALLING
    pair = [gateway_server(settings(storage={"url": postgres_url})) for _ in range(2)]
    used_up(pair[0])
    for step, verb, status in ((2, "approve", 200), (3, "", 200), (4, "deny", 429)):
        call = Waiting(lambda step=step: ask(pair[0], AGENT, step))  # type: ignore[misc]
        if verb:
            assert answer(pair[1], asked(pair[1]), verb) == 200
        assert call.done().status_code == status


def test_a_restart_asks_no_second_time(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question stays in the store; the client calls again, and the command answers."""
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", "a" * 40)
    upstream.default = CALLING
    path = tmp_path / "one.db"
    first = gateway_server(settings(path))
    used_up(first)
    call = Waiting(lambda: ask(first, AGENT, 2))
    run = asked(first)
    (question,) = questions(first)
    first.stop()
    assert getattr(call.done(), "status_code", 503) == 503
    second = gateway_server(settings(path))
    call = Waiting(lambda: ask(second, AGENT, 2))
    time.sleep(0.3)
    assert call.waits
    assert questions(second) == [question]
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"storage": {"path": str(path)}}))
    said = ["--reason", "urgent", "--author", "ann"]
    assert main(["runs", "approve", run, "--config", str(config), *said]) == 0
    assert call.done().status_code == 200
    assert main(["runs", "deny", run, "--config", str(config)]) != 0
    assert "no question" in capsys.readouterr().err
    assert answers(second) == [("approve", run, "ann", "urgent")]


def links(receiver: Receiver) -> dict[str, Any]:
    """The facts of the alert about a question."""
    until(lambda: bool(receiver.messages))
    (alert,) = receiver.messages[-1]["alerts"]
    assert (alert["rule"], alert["severity"]) == ("approval_asked", "danger")
    facts = dict(alert["facts"])
    for name in ("yes", "no"):  # the server of a test has another port than its config
        facts[name] = urlsplit(facts[name]).path
    return facts


def test_a_signed_link_answers_one_question(
    gateway_server: Start, upstream: ScriptedUpstream, receiver: Receiver
) -> None:
    """Opening it answers nothing; it works once; a forged one does not; and the key of an agent
    finds none in what is stored."""
    upstream.default = CALLING
    sinks = [{"name": "hook", "url": receiver.url, "rules": ["approval_asked"]}]
    alerts = {"sinks": sinks, "check_interval_s": 0.1, "group_wait_s": 0}
    server = gateway_server(settings(alerts=alerts))
    used_up(server)
    call = Waiting(lambda: ask(server, AGENT, 2))
    run = asked(server)
    facts = links(receiver)
    yes, no = server.url + facts["yes"], server.url + facts["no"]
    stored = httpx.get(f"{server.url}/api/alerts", headers=AGENT).text
    assert run in stored
    assert facts["yes"] not in stored
    assert "/dashboard/answer/" not in stored
    forged = (yes[:-1] + ("0" if yes[-1] != "0" else "1"), yes.replace("/yes/", "/no/"))
    for wrong in forged:
        assert httpx.get(wrong).status_code == 404
        assert httpx.post(wrong).status_code == 404
    shown = httpx.get(yes)
    assert shown.status_code == 200
    assert shown.text.count('type="submit"') == 1
    assert "Yes, let it go on" in shown.text
    assert "2-call budget" in shown.text
    assert httpx.get(no).status_code == 200
    assert call.waits
    done = httpx.post(yes, data={"author": "ann"})
    assert done.status_code == 200
    assert "The run goes on." in done.text
    assert call.done().status_code == 200
    for link in (yes, no):
        again = httpx.post(link)
        assert again.status_code == 404
        assert "has been answered" in again.text
    assert ask(server, AGENT, 3).status_code == 200
    receiver.messages.clear()
    next_call = Waiting(lambda: ask(server, AGENT, 4))
    asked(server)
    assert httpx.post(yes).status_code == 404
    assert httpx.post(server.url + links(receiver)["no"]).status_code == 200
    assert next_call.done().status_code == 429
    assert answers(server) == [("approve", run, "ann", ""), ("deny", run, "", "")]
