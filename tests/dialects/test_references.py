"""Items that a client names by their ids alone: known to steering, untouched on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.steering.transcript.content import without_guidance
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.looping import GUIDANCE, OFF, STEERING, Start, looping_model, states
from tests.dialects.test_openai_responses import OUTPUT, TASK, TOOL

History = list[dict[str, Any]]


def ask(server: AppServer, history: History, **more: Any) -> httpx.Response:
    body = {"model": "gpt-5", "input": history, "tools": [TOOL], **more}
    answer = httpx.post(f"{server.base_url}/responses", json=body, timeout=120)
    assert answer.status_code == 200
    return answer


def echoed(answer: httpx.Response, *, by_id: bool) -> History:
    """What a client sends back for an answer, with the results of its calls."""
    found: History = []
    for item in answer.json()["output"]:
        found.append({"type": "item_reference", "id": item["id"]} if by_id else item)
        if item["type"] == "function_call":
            result = {"call_id": item["call_id"], "output": OUTPUT}
            found.append({"type": "function_call_output", **result})
    return found


def unguided(item: dict[str, Any]) -> dict[str, Any]:
    """The item as the client wrote it."""
    told = isinstance(item.get("output"), str)
    return {**item, "output": without_guidance(item["output"])} if told else item


def loop(server: AppServer, steps: int, history: History, *, by_id: bool) -> list[httpx.Response]:
    """A tool loop over the whole history, which is left in `history`."""
    answers = []
    for _ in range(steps):
        answers.append(ask(server, history))
        history += echoed(answers[-1], by_id=by_id)
    return answers


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_named_items_are_the_items(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, restarts: bool
) -> None:
    """A client that names what it was told has the run of one that repeats it."""
    upstream.default = looping_model(9)
    storage = {**STEERING, "storage": {"path": str(tmp_path / "kept.db")}}
    plain, server = gateway_server(STEERING), gateway_server(storage)
    history: History = [{"role": "user", "content": TASK}]
    loop(plain, 7, [*history], by_id=False)
    answers = loop(server, 4, history, by_id=True)
    if restarts:
        server.stop()
        server = gateway_server(storage)
    answers += loop(server, 3, history, by_id=True)
    assert states(server) == states(plain)
    assert len({answer.headers["x-gateway-conversation-id"] for answer in answers}) == 1
    sent = upstream.last.fields["input"]
    assert any(GUIDANCE in str(item) for item in sent)
    assert [unguided(item) for item in sent] == history[: len(sent)]


def test_their_bytes_are_the_clients(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """With steering off not a byte differs; ids that nobody knows are no obstacle."""
    upstream.default = looping_model(9)
    server = gateway_server(OFF)
    history: History = [{"role": "user", "content": TASK}]
    loop(server, 2, history, by_id=True)
    unknown: History = [{"id": "msg_unknown", "type": "item_reference"}, {"id": "msg_bare"}]
    body = {"model": "gpt-5", "input": [*history, *unknown]}
    sent = httpx.Request("POST", "http://x", json=body).content
    assert httpx.post(f"{server.base_url}/responses", content=sent).status_code == 200
    assert upstream.last.body == sent


def test_nobody_names_what_is_anothers(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """An id of another tenant's answer is not known; neither is one that was not to be stored."""
    upstream.default = looping_model(9)
    keys = {"auth": {"gateway_keys": {"a": "key-a", "b": "key-b"}}}
    server = gateway_server({**STEERING, **keys})
    url = f"{server.base_url}/responses"
    for owner, stored in (("key-a", True), ("key-b", True), ("key-a", False)):
        opening = {"role": "user", "content": f"{TASK} {owner} {stored}"}
        body = {"model": "gpt-5", "input": [opening], "tools": [TOOL], "store": stored}
        first = httpx.post(url, json=body, headers={"x-gateway-key": owner})
        body["input"] = [opening, *echoed(first, by_id=True)]
        later = httpx.post(url, json=body, headers={"x-gateway-key": "key-a"})
        assert calls_of(server, later) == (["bash"] if owner == "key-a" and stored else [])


def calls_of(server: AppServer, answer: httpx.Response) -> list[str]:
    """The names of the calls in the newest step of an answer's run; none where nothing is known."""
    name = answer.headers["x-gateway-conversation-id"]
    headers = {"x-gateway-key": "key-a"}
    trace = httpx.get(f"{server.url}/api/runs/{name}.0", headers=headers).json()
    return [action["name"] for action in trace["steps"][-1]["content"]["actions"]]
