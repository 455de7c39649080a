"""Calls as they were sent and received, and sent once more to another model."""

from __future__ import annotations

import html
import json
import random
import re
import string
from pathlib import Path
from typing import Any

import httpx

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.stores.raw_calls_and_answers import CUT, RawCall, RawKeeper, unpacked
from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from steering_gateway_testing.patience import until
from steering_gateway_testing.store_conformance.records import TENANT, one_run
from tests.api.conftest import Start
from tests.api.conftest import start as start


def shown(page: str) -> list[str]:
    return [
        html.unescape(found)
        for found in re.findall(r'<pre class="said"[^>]*>(.*?)</pre>', page, re.S)
    ]


def ready(client: httpx.Client, address: str) -> bool:
    return "Ask it" in client.get(address).text


def test_a_call_is_shown_as_it_was(start: Start, upstream: ScriptedUpstream) -> None:
    """What went upstream, with the guidance, and what came back, streamed or not; secrets in it
    are masked as everywhere in the store."""
    server = start(storage={"raw_mb": 4}, model_routing={"NORMAL": "gpt-4o-mini"})
    with client_of(server) as client:
        letters = string.ascii_letters + string.digits
        secret = "".join(random.Random(5).choices(letters, k=48))
        agent = LoopingAgent(client, upstream, f"Use sk-{secret} and look")
        for _ in range(5):
            agent.step()
        address = f"/dashboard/runs/{agent.run_id}/steps/4/raw"
        until(lambda: "Sent" in client.get(address).text)
        sent, received = shown(client.get(address).text)
        last = upstream.requests[-1].json
        body = json.loads(sent)
        assert body["model"] == last["model"] == "gpt-4o-mini"
        assert body["messages"][-1] == last["messages"][-1]
        assert len(body["messages"]) == len(last["messages"])
        assert secret not in sent
        assert secret in str(last)
        assert json.loads(received)["choices"][0]["message"]["tool_calls"]

        upstream.default = Reply("Streamed words.")
        call = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Say it"}]}
        answer = client.post("/v1/chat/completions", json=call)
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        streamed = f"/dashboard/runs/{run_id}/steps/0/raw"
        until(lambda: "Sent" in client.get(streamed).text)
        assert "data: [DONE]" in shown(client.get(streamed).text)[1]
        assert client.get(f"/dashboard/runs/{run_id}/steps/9/raw").status_code == 404


async def test_raw_calls_stay_within_their_limits(tmp_path: Path) -> None:
    """The oldest go first; a long body is cut and says so; they go with their run, and a call
    without a run is dropped, not kept."""
    stores = await open_stores(StorageSettings(path=str(tmp_path / "raw.db")))
    assert stores.raw is not None
    dropped: list[int] = []
    keeper = RawKeeper(stores.raw, lambda: dropped.append(1), mask=False)
    for number in range(4):
        await stores.states.commit(one_run(number))
    noise = [random.Random(number).randbytes(3000) for number in range(4)]
    for number, body in enumerate(noise):
        call = RawCall(
            tenant=TENANT,
            run_id=f"r{number:04}",
            step_index=1,
            at=float(number),
            dialect="chat",
            request=body,
            response=b"short",
        )
        await keeper.keep(call, max_bytes=2000, most_bytes=5000)

    async def kept(number: int) -> RawCall | None:
        assert stores.raw is not None
        found = await stores.raw.find_raw(f"r{number:04}", 1, tenant=TENANT)
        return found and unpacked(found)

    newest = await kept(3)
    assert newest is not None
    assert newest.request == noise[3][:2000] + CUT
    assert newest.response == b"short"
    assert await kept(0) is None
    assert await stores.raw.find_raw("r0003", 1, tenant="other") is None
    await keeper.keep(RawCall(**{**vars_of(newest), "run_id": "none"}), max_bytes=9, most_bytes=99)
    assert dropped == [1]
    await stores.runs.prune(older_than=9e9)
    assert await kept(3) is None
    await stores.close()


def vars_of(call: RawCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in RawCall.__dataclass_fields__}
