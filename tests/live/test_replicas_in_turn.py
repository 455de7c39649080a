"""A conversation whose calls go to two gateways in turn: each reads what came since its last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.steering.transcript.reader import StepReader
from gateway.testing import AppServer, Reply, ScriptedUpstream, ToolCall
from gateway.wire.messages import MessageReader
from tests.patience import ANSWER_S, DEADLINE_MS
from tests.postgres import empty_database

Start = Callable[..., AppServer]

CALLS = 12


@pytest.fixture(params=["a file", "a database"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The settings of two gateways on one store."""
    if request.param == "a file":
        path = str(tmp_path / "shared.db")
        yield {"storage": {"path": path}, "server": {"workers": 2}}
        return
    with empty_database() as url:
        yield {"storage": {"url": url, "commit_limit_ms": DEADLINE_MS}}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many messages were digested and folded, by all gateways of this process."""
    counts: Counter[str] = Counter()
    digest, fold = MessageReader.atoms, StepReader.read

    def digested(self: MessageReader, message: object) -> Any:
        counts["digested"] += 1
        return digest(self, message)

    def folded(self: StepReader, message: object) -> Any:
        counts["folded"] += 1
        return fold(self, message)

    monkeypatch.setattr(MessageReader, "atoms", digested)
    monkeypatch.setattr(StepReader, "read", folded)
    return counts


def test_each_reads_what_came_since(
    gateway_server: Start, upstream: ScriptedUpstream, storage: dict[str, Any], read: Counter[str]
) -> None:
    """Two turns of the other and its own, and not the history; the run is still one run."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    servers = [gateway_server(storage) for _ in range(2)]
    messages: list[Any] = [{"role": "user", "content": "Find the file. " * 30}]
    costs, ids, steps = [], set(), []
    for number in range(CALLS):
        read.clear()
        answer = httpx.post(
            f"{servers[number % 2].url}/v1/chat/completions",
            json={"model": "m", "tools": [_TOOL], "messages": messages},
            timeout=ANSWER_S,
        )
        assert answer.status_code == 200, answer.text
        costs.append((read["digested"], read["folded"]))
        ids.add(answer.headers["x-gateway-conversation-id"])
        steps.append(answer.headers.get("x-gateway-step"))
        reply = answer.json()["choices"][0]["message"]
        messages.append(reply)
        call = reply["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call, "content": f"file {number}"})
    assert len(ids) == 1
    assert steps == [str(number) for number in range(CALLS)]
    # Both turns that came since, and the reply to the call itself.
    assert max(digested for digested, _ in costs[2:]) <= 5
    assert max(folded for _, folded in costs[2:]) <= 4


_TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
