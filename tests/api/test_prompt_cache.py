"""What a call paid again because the provider's cache did not have it, with the cause."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.calls.call import Call
from gateway.calls.prompt_cache import SentPrompts, changed
from gateway.wire.usage import Loss
from steering_gateway_testing import Reply, ScriptedUpstream, Usage
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.patience import until
from steering_gateway_testing.receiver import Receiver, alerting
from tests.api.conftest import Start
from tests.api.conftest import start as start

PROMPT = 20_000
TOOL = {"type": "function", "function": {"name": "bash"}}
MARKED = [{"type": "text", "text": "text 1", "cache_control": {"type": "ephemeral"}}]


def body_of(
    messages: int, texts: dict[int, Any] | None = None, *, model: str = "gpt-4o", tools: int = 1
) -> dict[str, Any]:
    """A request of an agent with so many messages; `texts`: other ones than usual, by message."""
    listed = [
        {"role": ("assistant", "user")[n % 2] if n else "system", "content": f"text {n}"}
        for n in range(messages)
    ]
    for at, text in (texts or {}).items():
        listed[at]["content"] = text
    return {"model": model, "messages": listed, "tools": [{**TOOL, "n": n} for n in range(tools)]}


def ask(client: httpx.Client, upstream: ScriptedUpstream, body: Any, cached: int) -> None:
    """One call of a conversation."""
    usage = Usage(prompt_tokens=PROMPT, cached_tokens=cached)
    upstream.default = Reply("ok", usage=usage)
    headers = {"x-conversation-id": "one", "user-agent": "crawler/1.0"}
    client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()


@pytest.mark.parametrize(
    ("body", "cached", "cause"),
    [
        pytest.param(body_of(6), PROMPT, "", id="nothing-lost"),
        pytest.param(body_of(6), PROMPT - 1000, "", id="the-end-of-a-block"),
        pytest.param(body_of(6, {0: "It is 07:15."}), 0, "system prompt", id="a-clock"),
        pytest.param(body_of(6, tools=2), 0, "tools", id="other-tools"),
        pytest.param(body_of(6, {1: "text 1, edited"}), 500, "message 2", id="an-edit"),
        pytest.param(body_of(6, {1: MARKED}), 0, "provider", id="a-mark-that-moved"),
        pytest.param(body_of(2, {1: "So far: all."}), 0, "compaction", id="a-compaction"),
        pytest.param(body_of(6, model="gpt-4o-mini"), 0, "model", id="another-model"),
    ],
)
def test_what_was_paid_again_has_its_cause(
    start: Start, upstream: ScriptedUpstream, body: Any, cached: int, cause: str
) -> None:
    """On the step, in the totals of the run and in the health of all; with dollars at the price of
    the list."""
    with client_of(start()) as client:
        ask(client, upstream, body_of(4), PROMPT)
        ask(client, upstream, body, cached)
        runs = client.get("/api/runs").json()["runs"]
        traces = [client.get(f"/api/runs/{run['id']}").json() for run in runs]
        health = client.get("/api/health-summary").json()
        page = client.get("/dashboard/health").text
    calls = [step["call"] for trace in traces for step in trace["steps"] if step.get("call")]
    found = {(each["lost_cause"], each["lost_tokens"]) for each in calls}
    lost = PROMPT - cached
    assert found == ({("", 0), (cause, lost)} if cause else {("", 0)})
    kind = cause.rstrip(" 0123456789")
    assert health["lost_tokens"] == ({kind: lost} if cause else {})
    if cause:
        rate = {"gpt-4o": 1.25e-6, "gpt-4o-mini": 0.075e-6}[body["model"]]
        assert health["lost_usd"][kind] == pytest.approx(lost * rate)
    assert ("Paid again" in page) == bool(cause)


@pytest.mark.parametrize(
    ("waited", "took", "cause"), [(0, 307, "provider"), (307, 0, "pause"), (250, 100, "provider")]
)
def test_a_pause_ends_when_the_request_arrives(
    start: Start,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
    waited: int,
    took: int,
    cause: str,
) -> None:
    """The time that the call itself takes is no pause. The clock of the second call is moved: it
    arrives so many seconds later, and its answer takes so many more."""
    server = start()
    lost = SentPrompts.lost

    def later(self: SentPrompts, call: Call, at: float) -> Loss:
        call.exchange.timing.started += waited
        return lost(self, call, at + waited + took)

    with client_of(server) as client:
        ask(client, upstream, body_of(4), PROMPT)
        monkeypatch.setattr(SentPrompts, "lost", later)
        ask(client, upstream, body_of(6), 0)
        health = client.get("/api/health-summary").json()
    assert health["lost_tokens"] == {cause: PROMPT}


def test_what_is_written_for_an_hour_is_lost_at_its_own_price(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """Twice the price of input, less that of a read."""
    with client_of(start()) as client:
        for messages, cached in ((4, PROMPT), (6, 0)):
            body = body_of(messages, model="claude-sonnet-4-5")
            body |= {"max_tokens": 10, "system": f"{cached} of it"}
            body["messages"] = body["messages"][1:]
            body.pop("tools")
            usage: dict[str, Any] = {
                "input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": 1,
            }
            usage["cache_creation_input_tokens"] = PROMPT - cached
            usage["cache_creation"] = {"ephemeral_1h_input_tokens": PROMPT - cached}
            upstream.default = Reply("ok", extra={"usage": usage})
            headers = {"x-conversation-id": "one", "x-api-key": "k"}
            client.post("/v1/messages", json=body, headers=headers).raise_for_status()
        health = client.get("/api/health-summary").json()
    assert health["lost_usd"]["system prompt"] == pytest.approx(PROMPT * 3e-6 * 1.9)


def test_a_prompt_that_begins_otherwise_at_every_call_is_reported_once(
    start: Start, upstream: ScriptedUpstream, receiver: Receiver
) -> None:
    """From the fifth change on, with the part, what stood there and what stands there; a secret
    beside it is masked. A provider that reports no cached tokens gives it, too."""
    key = "sk-ant-api03-" + "a1B2c3D4e5F6" * 8
    with client_of(start(alerts=alerting(receiver, rules={"run_stuck": None}))) as client:
        for n in range(8):
            text = f"The key is {key}. It is 07:0{n}."
            ask(client, upstream, body_of(2 + 2 * n, {0: text}), 0)
        (alert,) = until(lambda: client.get("/api/alerts").json()["alerts"])
        until(lambda: receiver.messages)
    assert (alert["rule"], alert["facts"]["part"]) == ("prompt_changes", "system prompt")
    assert "crawler" in alert["title"]
    was, now = alert["facts"]["lines"]
    assert was != now
    assert "It is 07:0" in was
    assert "It is 07:0" in now
    assert key not in json.dumps(receiver.messages)
    assert max(map(len, (was, now))) < 100
    assert receiver.titles() == [alert["title"]]


@pytest.mark.parametrize(
    ("key", "old", "new", "part"),
    [
        ("messages", {"system": "a"}, {"system": "b"}, "system prompt"),
        ("input", {"instructions": "a"}, {"instructions": "b"}, "system prompt"),
        ("contents", {"system_instruction": {"parts": []}}, {}, "system prompt"),
        ("input", {"input": "one"}, {"input": "two"}, "message 1"),
        ("input", {"metadata": {"turn": 1}}, {"metadata": {"turn": 2}}, ""),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_every_dialect_names_its_parts(
    key: str, old: Any, new: Any, part: str, *, first: bool
) -> None:
    """Wherever they stand in the body; what is no part of a prompt is none."""
    listed = [{"role": "user", "content": "x"}]
    bodies = []
    for more, items in ((old, listed), (new, [*listed, {"role": "user", "content": "y"}])):
        body = {key: items, **more}
        if first:
            body = {**more, key: more.get(key, items)}
        bodies.append(json.dumps(body).encode())
    assert changed(bodies[0], bodies[1], key)[0] == part
