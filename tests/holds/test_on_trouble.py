"""`control.on_trouble`: what a failure does that is repeated in spite of advice."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.core.guidance_text import HAND_OVER_TEXT
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.patience import DEADLINE_MS, until
from steering_gateway_testing.receiver import Receiver

Start = Callable[..., AppServer]
ADMIN = {"x-gateway-key": "a" * 40}
AGENT = {"x-gateway-key": "b" * 40}
SENTENCE = HAND_OVER_TEXT[:40]
COMMAND = {"command": "pytest tests/test_parser.py"}
SAID = "Let me run the test again."
LOOPING = Reply(SAID, tool_calls=(ToolCall("bash", COMMAND, id="c"),))
FAILED = "FAILED tests/test_parser.py::test_empty - AssertionError"
MOST = 14


def settings(act: str, **more: Any) -> dict[str, Any]:
    return {
        "control": {"on_trouble": act},
        "steering": {"deadline_ms": DEADLINE_MS},
        "routing": {"escalate_at_severity": 0},
        "monitors": {"monitors": ["test_repeat"]},
        **more,
    }


def loop(server: AppServer, **headers: str) -> list[httpx.Response]:
    """The answers of a run that repeats its command until it is stopped."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair the parser."}]
    answers: list[httpx.Response] = []
    for number in range(MOST):
        body = {"model": "m", "messages": messages, "tools": []}
        url = f"{server.base_url}/chat/completions"
        answers.append(httpx.post(url, json=body, headers=headers, timeout=120))
        if answers[-1].status_code != 200:
            break
        message = answers[-1].json()["choices"][0]["message"]
        call = {**message["tool_calls"][0], "id": f"c{number}"}
        messages.append({**message, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": FAILED})
    return answers


def advised_at(answers: list[httpx.Response]) -> int:
    """The first call with a text of a monitor."""
    given = [answer.headers.get("x-gateway-guidance", "") for answer in answers]
    return next(n for n, names in enumerate(given) if "monitor:" in names)


def listed(server: AppServer, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The newest run."""
    return dict(httpx.get(f"{server.url}/api/runs", headers=headers).json()["runs"][0])


def noted(server: AppServer, run_id: str, start: str) -> list[tuple[int, str]]:
    """The reasons on record that begin so, each with its step."""
    trace = httpx.get(f"{server.url}/api/runs/{run_id}").json()
    called = [step for step in trace["steps"] if step["call"]]
    found = [(step["step_index"], r) for step in called for r in step["call"]["reasons"]]
    return [(step, reason) for step, reason in found if reason.startswith(start)]


def asked(upstream: ScriptedUpstream) -> list[int]:
    """How often the text of a hand-over is in the body of each call."""
    return [request.body.decode().count(SENTENCE) for request in upstream.requests]


@pytest.mark.parametrize("act", ["tell", "advise"])
def test_the_mildest_acts_let_the_run_go_on(
    gateway_server: Start, upstream: ScriptedUpstream, act: str
) -> None:
    """The act and the alarm's sentence are on record and on the run's page, at the step after the
    text; nothing else changes."""
    upstream.default = LOOPING
    server = gateway_server(settings(act))
    answers = loop(server)
    assert [answer.status_code for answer in answers] == [200] * MOST
    until(lambda: listed(server)["totals"]["calls"] == MOST)
    run = listed(server)
    (step, reason), *_ = noted(server, run["id"], "trouble: ")
    assert step > advised_at(answers)
    assert reason.startswith(f"trouble: {act}: ")
    assert "steps" in reason
    page = httpx.get(f"{server.url}/dashboard/runs/{run['id']}").text
    assert f"trouble: {act}: " in page
    assert (run["handed_over"], run["stopped"]) == (None, None)


def test_the_model_of_slow_is_asked_from_the_second_alarm_on(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """By default, and only where the operator has named one."""
    upstream.default = LOOPING
    plain = {"steering": {"deadline_ms": DEADLINE_MS}, "routing": {"escalate_at_severity": 0}}
    answers = loop(gateway_server({**plain, "model_routing": {"SLOW": "strong"}}))
    models = [answer.headers["x-gateway-model"] for answer in answers]
    first = models.index("strong")
    assert first > advised_at(answers)
    assert models == ["m"] * first + ["strong"] * (MOST - first)
    answers = loop(gateway_server(plain))
    assert {answer.headers["x-gateway-model"] for answer in answers} == {"m"}


@pytest.mark.parametrize("placement", ["auto", "system"])
def test_a_run_is_asked_once_to_hand_over(
    gateway_server: Start, upstream: ScriptedUpstream, placement: str
) -> None:
    """The text is in each later body exactly once, at the same place; the run is marked in lists,
    traces, exports and pages, and is not stopped."""
    upstream.default = LOOPING
    server = gateway_server(settings("hand_over", injection={"placement": placement}))
    answers = loop(server, **{"x-session-id": "looping"})
    assert [answer.status_code for answer in answers] == [200] * MOST
    counts = asked(upstream)
    first = counts.index(1)
    assert first > advised_at(answers)
    assert counts == [0] * first + [1] * (MOST - first)
    until(lambda: listed(server)["totals"]["calls"] == MOST)
    run = listed(server)
    assert (run["handed_over"], run["stopped"]) == (first, None)
    assert noted(server, run["id"], "trouble: hand_over: ")[0][0] == first
    table = httpx.get(f"{server.url}/api/export?format=csv").text
    (row,) = csv.DictReader(io.StringIO(table))
    assert row["handed_over"] == str(first)
    for page in ("", "/runs", f"/runs/{run['id']}"):
        assert "handed over" in httpx.get(f"{server.url}/dashboard{page}").text


def test_only_a_person_lets_an_ended_run_go_on(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """It is stopped with the alarm's sentence and no way around it; the agent's key resumes
    nothing, another id and another mode neither; after a person has resumed it, it is not ended
    again."""
    upstream.default = LOOPING
    auth = {"admin_key": ADMIN["x-gateway-key"], "gateway_keys": {"acme": AGENT["x-gateway-key"]}}
    server = gateway_server(settings("end", auth=auth))
    answers = loop(server, **AGENT, **{"x-session-id": "looping"})
    error = answers[-1].json()["error"]
    assert (answers[-1].status_code, error["code"]) == (429, "run_stopped")
    assert error["message"].startswith("Stopped: ordered by control.on_trouble: ")
    assert "resume" not in str(answers[-1].json())
    assert len(answers) - 1 > advised_at(answers)
    run_id = f"{answers[0].headers['x-gateway-conversation-id']}.0"
    resume = f"{server.url}/api/runs/{run_id}/resume"
    assert httpx.post(resume, headers=AGENT).status_code == 403
    sent = len(upstream.requests)
    for more in ({"x-session-id": "looping", "x-gateway-mode": "off"}, {"x-session-id": "other"}):
        again = once_more(upstream, server, {**AGENT, **more})
        assert (again.status_code, again.json()["error"]["code"]) == (429, "run_stopped")
    assert len(upstream.requests) == sent
    runs = httpx.get(f"{server.url}/api/runs?stopped=on_trouble", headers=ADMIN).json()["runs"]
    (stop,) = [run["stopped"] for run in runs if run["id"] == run_id]
    assert (stop["action"], stop["by"]) == ("stop", "on_trouble")
    assert httpx.post(resume, headers=ADMIN).status_code == 200
    for _ in range(4):
        resumed = once_more(upstream, server, {**AGENT, "x-session-id": "looping"})
        assert resumed.status_code == 200
        assert resumed.headers["x-gateway-monitors"]


def once_more(
    upstream: ScriptedUpstream, server: AppServer, headers: dict[str, str]
) -> httpx.Response:
    """The newest call with one more result, as its client would write it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair the parser."}]
    own = [m for m in upstream.requests[-1].json["messages"] if m["role"] == "tool"]
    call = {"name": "bash", "arguments": '{"command": "pytest tests/test_parser.py"}'}
    for number in range(len(own) + 1):
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        said = {"role": "assistant", "content": SAID, "tool_calls": calls}
        messages += [said, {"role": "tool", "tool_call_id": f"c{number}", "content": FAILED}]
    body = {"model": "m", "messages": messages, "tools": []}
    return httpx.post(
        f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=120
    )


def test_a_person_is_asked_once(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """`ask` waits where `end` stops; after a yes the run goes on, and no second question comes."""
    from tests.features.budgets.test_ask import Waiting, answer, questions
    from tests.features.budgets.test_ask import asked as asked_run

    upstream.default = LOOPING
    auth = {"admin_key": ADMIN["x-gateway-key"], "gateway_keys": {"acme": AGENT["x-gateway-key"]}}
    server = gateway_server(settings("ask", auth=auth))
    looping = Waiting(lambda: loop(server, **AGENT))
    run = asked_run(server)
    assert questions(server)[0]["reason"].startswith("control.on_trouble: ")
    assert answer(server, run, "approve") == 200
    answers = looping.done(60)
    assert [each.status_code for each in answers] == [200] * MOST


def test_shadow_and_the_arm_of_chance_do_nothing(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """No byte changes and no call is refused; in shadow the log says what would have been done."""
    upstream.default = LOOPING
    server = gateway_server(settings("end"))
    answers = loop(server, **{"x-gateway-mode": "shadow"})
    assert [answer.status_code for answer in answers] == [200] * MOST
    until(lambda: listed(server)["totals"]["calls"] == MOST)
    run = listed(server)
    assert [r for _, r in noted(server, run["id"], "control.on_trouble: ")] == [
        "control.on_trouble: would end"
    ]
    assert run["stopped"] is None


@pytest.mark.parametrize("act", ["tell", "route"])
def test_a_person_is_alerted_of_trouble_once(
    gateway_server: Start, upstream: ScriptedUpstream, receiver: Receiver, act: str
) -> None:
    """When the run goes on in spite of advice, with its page and no text of it."""
    upstream.default = LOOPING
    sinks = [{"name": "ops", "url": receiver.url, "rules": ["trouble"]}]
    pace = {"check_interval_s": 0.1, "group_wait_s": 0, "base_url": "https://gateway.example"}
    server = gateway_server(
        settings(act, alerts={"sinks": sinks, **pace}, model_routing={"SLOW": "strong"})
    )
    loop(server)
    run = listed(server)
    until(receiver.titles)
    (alert,) = [alert for message in receiver.messages for alert in message["alerts"]]
    assert alert["link"] == f"https://gateway.example/dashboard/runs/{run['id']}"
    known = {"run_id": run["id"], "session_id": run["conversation_id"], "act": act}
    assert alert["facts"] == known
    assert alert["title"].startswith("A failure goes on in spite of advice: test_repeat, ")
    assert "pytest" not in str(receiver.messages)


def test_a_person_is_alerted_of_a_hand_over_once(
    gateway_server: Start, upstream: ScriptedUpstream, receiver: Receiver
) -> None:
    """With the address of the run's page; and once more when it goes on."""
    upstream.default = LOOPING
    sinks = [{"name": "ops", "url": receiver.url, "rules": ["hand_over"]}]
    pace = {"check_interval_s": 0.1, "group_wait_s": 0, "base_url": "https://gateway.example"}
    server = gateway_server(settings("hand_over", alerts={"sinks": sinks, **pace}))
    loop(server)
    run = until(lambda: listed(server)["handed_over"] and listed(server))
    until(lambda: len(receiver.titles()) == 2)
    alerts = [alert for message in receiver.messages for alert in message["alerts"]]
    assert {alert["link"] for alert in alerts} == {
        f"https://gateway.example/dashboard/runs/{run['id']}"
    }
    titles = sorted(alert["title"] for alert in alerts)
    assert titles[0].startswith("A run goes on ")
    assert titles[1].startswith(f"A run is handed over at step {run['handed_over']}")
