"""`control.at_risk`: a run that is likely to fail is handed over to a person, or ended."""

from __future__ import annotations

import csv
import io
from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.errors import ConfigError
from gateway.steering.acting import AtRisk, AtRiskSettings
from gateway.steering.guidance.texts import HAND_OVER_TEXT
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from tests.alerts.conftest import Receiver
from tests.alerts.conftest import receiver as receiver
from tests.api.conftest import until
from tests.budgets.test_strikes import LOOPING, MOST, Start, listed, loop
from tests.patience import DEADLINE_MS

ADMIN = {"x-gateway-key": "a" * 40}
AGENT = {"x-gateway-key": "b" * 40}
LEVEL = 0.55  # a level that the loop of these tests stays at
SENTENCE = HAND_OVER_TEXT[:40]


def settings(at_risk: str, **more: Any) -> dict[str, Any]:
    control = {"at_risk": at_risk, "hand_over_at": LEVEL, "end_at": 1.0, "end_after": 2}
    return {"control": control, "steering": {"deadline_ms": DEADLINE_MS}, **more}


def asked(upstream: ScriptedUpstream) -> list[int]:
    """How often the text is in the whole body of each call."""
    return [request.body.decode().count(SENTENCE) for request in upstream.requests]


def reasons(server: AppServer, run_id: str, headers: dict[str, str] | None = None) -> list[str]:
    """What was decided in a run, of all of its calls."""
    trace = httpx.get(f"{server.url}/api/runs/{run_id}", headers=headers).json()
    return [reason for step in trace["steps"] for reason in step["call"]["reasons"]]


@pytest.mark.parametrize("placement", ["auto", "system"])
def test_a_run_at_risk_is_asked_once_to_report(
    gateway_server: Start, upstream: ScriptedUpstream, placement: str
) -> None:
    """The text is in each later body exactly once, at the same place; the run is marked in lists,
    traces, exports and pages, and is not stopped: that it goes on is said once."""
    upstream.default = LOOPING
    server = gateway_server(settings("hand_over", injection={"placement": placement}))
    answers = loop(server, **{"x-session-id": "looping"})
    assert [answer.status_code for answer in answers] == [200] * MOST
    counts = asked(upstream)
    first = counts.index(1)
    assert counts == [0] * first + [1] * (MOST - first)
    until(lambda: listed(server)["totals"]["calls"] == MOST)
    run = listed(server)
    assert (run["handed_over"], run["stopped"]) == (first, None)
    noted = reasons(server, run["id"])
    assert [r for r in noted if r.startswith("hand_over: risk 0.")]
    assert len([r for r in noted if "the run goes on" in r]) == 1
    trace = httpx.get(f"{server.url}/api/runs/{run['id']}").json()
    given = [row for step in trace["steps"] for row in step["guidance"]]
    assert [row["text"] for row in given if row["source"] == "hand_over"] == [HAND_OVER_TEXT]
    table = httpx.get(f"{server.url}/api/export?format=csv").text
    (row,) = csv.DictReader(io.StringIO(table))
    assert row["handed_over"] == str(first)
    for page in ("", "/runs", f"/runs/{run['id']}"):
        assert "handed over" in httpx.get(f"{server.url}/dashboard{page}").text


def test_nothing_is_said_without_the_setting(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Off by default, also where the levels are set; and a run that only talks is left out."""
    upstream.default = LOOPING
    loop(gateway_server(settings("off")))
    assert not any(asked(upstream))
    call = ToolCall("get_order", {"id": 7}, id="c")
    upstream.default = Reply("Maybe the order is missing, I am not sure.", tool_calls=(call,))
    server = gateway_server(settings("end"))
    answers = loop(server)
    assert [answer.status_code for answer in answers] == [200] * MOST
    assert float(answers[-1].headers["x-gateway-risk"]) > LEVEL
    assert not any(asked(upstream))


def test_streams_get_the_text_too(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The body that leaves is the same for a stream, and what comes back is untouched."""
    upstream.default = LOOPING
    server = gateway_server(settings("hand_over"))
    loop(server)
    body = upstream.requests[-1].json
    own = [m for m in body["messages"] if SENTENCE not in str(m.get("content"))]
    streamed = {**body, "messages": own, "stream": True}
    answer = httpx.post(f"{server.base_url}/chat/completions", json=streamed, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert SENTENCE not in answer.text
    assert asked(upstream)[-1] == 1


def test_only_a_person_lets_an_ended_run_go_on(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """It is asked, then stopped with a text for people; the agent's key resumes nothing, another id
    and another mode neither; after a person has resumed it, it is not ended again."""
    upstream.default = LOOPING
    auth = {"admin_key": ADMIN["x-gateway-key"], "gateway_keys": {"acme": AGENT["x-gateway-key"]}}
    server = gateway_server(settings("end", auth=auth))
    answers = loop(server, **AGENT, **{"x-session-id": "looping"})
    error = answers[-1].json()["error"]
    assert (answers[-1].status_code, error["code"]) == (429, "run_stopped")
    assert "Stopped: ordered by control.at_risk: risk 0." in error["message"]
    assert "asked to hand over at step" in error["message"]
    assert len(answers) - 1 - asked(upstream).index(1) == 2
    run_id = f"{answers[0].headers['x-gateway-conversation-id']}.0"
    resume = f"{server.url}/api/runs/{run_id}/resume"
    assert httpx.post(resume, headers=AGENT).status_code == 403
    sent = len(upstream.requests)
    for more in ({"x-session-id": "looping", "x-gateway-mode": "off"}, {"x-session-id": "other"}):
        again = loop_of(upstream, server, {**AGENT, **more})
        assert (again.status_code, again.json()["error"]["code"]) == (429, "run_stopped")
    assert len(upstream.requests) == sent
    runs = httpx.get(f"{server.url}/api/runs", headers=ADMIN).json()["runs"]
    (stop,) = [run["stopped"] for run in runs if run["id"] == run_id]
    assert (stop["action"], stop["by"]) == ("stop", "at_risk")
    assert httpx.post(resume, headers=ADMIN).status_code == 200
    for _ in range(4):
        resumed = loop_of(upstream, server, {**AGENT, "x-session-id": "looping"})
        assert resumed.status_code == 200
        assert float(resumed.headers["x-gateway-risk"]) > LEVEL


def loop_of(
    upstream: ScriptedUpstream, server: AppServer, headers: dict[str, str]
) -> httpx.Response:
    """The newest call once more, as its client wrote it: with the next result."""
    messages = [
        message
        for message in upstream.requests[-1].json["messages"]
        if SENTENCE not in str(message.get("content"))
    ]
    number = sum(message["role"] == "tool" for message in messages)
    call = {"name": "bash", "arguments": '{"command": "pytest tests/test_parser.py"}'}
    calls = [{"id": f"c{number}", "type": "function", "function": call}]
    messages += [
        {"role": "assistant", "content": "Once more.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"c{number}", "content": "FAILED tests/test_parser.py"},
    ]
    body = {"model": "m", "messages": messages, "tools": []}
    return httpx.post(f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=60)


def test_shadow_says_what_would_have_been(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """No byte changes and no call is refused; the log has both acts, once each."""
    upstream.default = LOOPING
    server = gateway_server(settings("end"))
    answers = loop(server, **{"x-gateway-mode": "shadow"})
    assert [answer.status_code for answer in answers] == [200] * MOST
    assert not any(asked(upstream))
    until(lambda: listed(server)["totals"]["calls"] == MOST)
    run = listed(server)
    would = [r for r in reasons(server, run["id"]) if r.startswith("control.at_risk: would")]
    assert would == ["control.at_risk: would hand over", "control.at_risk: would stop"]
    assert (run["handed_over"], run["stopped"]) == (None, None)


def test_a_person_is_alerted_once(
    gateway_server: Start, upstream: ScriptedUpstream, receiver: Receiver
) -> None:
    """With the address of the run's page, although the run has ended at once; and once more when it
    goes on."""
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


def test_each_act_is_done_once() -> None:
    """At the level, some steps after the hand-over, and at the higher level at once."""
    rules = AtRiskSettings(at_risk="end", hand_over_at=0.8, end_at=0.9, end_after=3)
    calm = AtRisk().after(3, 0.79, rules)
    assert calm == AtRisk()
    handed = calm.after(4, 0.8, rules)
    assert (handed.asks, handed.stops, handed.handed_over) == (True, False, 4)
    assert not handed.after(4, 0.8, rules).asks  # the same call once more
    assert handed.after(6, 0.85, rules) == handed.kept
    assert handed.after(7, 0.8, rules).stops
    better = handed.after(7, 0.5, rules)
    assert (better.stops, better.again) == (False, True)
    assert not better.after(8, 0.85, rules).stops
    ended = better.after(9, 0.9, rules)
    assert ended.stops
    assert not ended.after(10, 0.95, rules).stops
    gentle = AtRiskSettings(at_risk="hand_over", hand_over_at=0.8, end_at=0.9, end_after=3)
    assert not any(handed.after(step, 0.95, gentle).stops for step in (5, 7, 9))
    assert AtRisk().after(5, 1.0, AtRiskSettings()) == AtRisk()


def test_levels_out_of_order_are_refused() -> None:
    """Ending may not come before handing over."""
    with pytest.raises(ConfigError, match="hand_over_at"):
        settings_from_dict({"control": {"hand_over_at": 0.9, "end_at": 0.8}})
