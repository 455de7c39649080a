"""Credentials that pass through a gateway: sent on untouched, stored nowhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import GUIDING, Agent, guidance_frames, opening
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.secrets import Planted, planted_secrets
from tests.live.test_storage import Start, files

PLANTED = planted_secrets(3)
TEXT = "\n".join(f"{planted.text} #" for planted in PLANTED)


def careless(request: ReceivedRequest) -> Reply:
    """A model that repeats every credential in its thoughts, calls and answers."""
    turn = sum(m.get("role") == "assistant" for m in request.messages)
    if turn == 5:
        return Reply(f"Done, with {TEXT}")
    call = ToolCall("bash", {"command": f"pytest && echo {TEXT}"}, id=f"call_{turn}")
    return Reply(f"Maybe, wait, perhaps {TEXT}", reasoning=f"{TEXT}?", tool_calls=(call,))


def leaked(content: bytes) -> list[str]:
    """The shapes whose credential is in some bytes, also as JSON writes it."""
    return [p.shape for p in PLANTED if p.secret.encode() in content or _escaped(p) in content]


def _escaped(planted: Planted) -> bytes:
    return json.dumps(planted.secret)[1:-1].encode()


async def leak(http: httpx.AsyncClient, url: str, upstream: ScriptedUpstream) -> Agent:
    """A run in which each place of a conversation has every credential."""
    key = PLANTED[0].text
    messages = opening(f"Deploy with {TEXT}")
    messages[0]["content"] = f"You deploy. {TEXT}"
    agent = Agent(http, url, messages)
    await agent.run(4, f"FAILED test_it - AssertionError: {key}\n{TEXT}")
    assert TEXT in upstream.last.messages[1]["content"]
    assert TEXT in upstream.last.messages[-1]["content"]
    return agent


async def test_no_credential_is_stored(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """No credential of any shape is on disk, neither in the run log nor in the state that a
    restarted gateway continues from, nor in a pattern; and that gateway does continue."""
    upstream.default = careless
    settings: dict[str, Any] = {**GUIDING, "storage": {"path": str(tmp_path / "runs.db")}}
    server = gateway_server(settings)
    agent = await leak(http, server.base_url, upstream)
    assert guidance_frames(upstream.last.json), "guidance may quote what failed"
    pattern = {"tier": "e2", "fields": {"situation": TEXT, "intervention": TEXT, "steps": [TEXT]}}
    added = await http.post(f"{server.url}/api/patterns", json=pattern, headers=CONTROL)
    assert added.status_code == 201, added.text
    runs = (await http.get(f"{server.url}/api/runs")).json()["runs"]
    assert "[masked:" in runs[0]["task_preview"]
    told = {"outcome": "failure", "comment": TEXT[:2000]}
    answer = await http.post(f"{server.url}/api/runs/{runs[0]['id']}/outcome", json=told)
    assert answer.status_code == 200
    assert leaked(files(tmp_path)) == []
    await asyncio.to_thread(server.stop)
    assert leaked(files(tmp_path)) == []
    agent.url = gateway_server(settings).base_url
    turn = await agent.turn()
    assert turn.headers["x-gateway-identity"] == "prefix"
    assert turn.headers["x-gateway-step"] == "4"
    await agent.turn()
    assert leaked(files(tmp_path)) == []


async def test_a_credential_in_an_answer_kept_by_id(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """An answer of the Responses API that a client continues by its id is not stored with what it
    says; the conversation is still found by that id after a restart."""
    upstream.default = careless
    settings: dict[str, Any] = {**GUIDING, "storage": {"path": str(tmp_path / "runs.db")}}
    server = gateway_server(settings)
    body = {"model": "gpt-5", "input": f"Deploy with {TEXT}", "tools": []}
    first = await http.post(f"{server.base_url}/responses", json=body)
    await asyncio.to_thread(server.stop)
    assert leaked(files(tmp_path)) == []
    server = gateway_server(settings)
    more = {"model": "gpt-5", "input": "Go on.", "previous_response_id": first.json()["id"]}
    second = await http.post(f"{server.base_url}/responses", json=more)
    name = "x-gateway-conversation-id"
    assert second.headers[name] == first.headers[name]
    assert leaked(files(tmp_path)) == []


async def test_masking_can_be_switched_off(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """With `storage.mask_secrets: false` texts are stored as they are."""
    upstream.default = careless
    storage = {"path": str(tmp_path / "runs.db"), "mask_secrets": False}
    server = gateway_server({**GUIDING, "storage": storage})
    await leak(http, server.base_url, upstream)
    await asyncio.to_thread(server.stop)
    assert len(leaked(files(tmp_path))) == len(PLANTED)
