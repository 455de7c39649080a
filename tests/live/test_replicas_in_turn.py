"""A conversation whose calls go to two gateways in turn: each reads what came since its last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest

from gateway.steering.transcript.steps import StepReader
from gateway.wire.message_identity import MessageReader
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.patience import ANSWER_S, DEADLINE_MS
from tests.live.test_judge import settings as judged
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


@pytest.mark.parametrize("scorer", ["ledger", "judge"])
def test_each_reads_what_came_since(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    storage: dict[str, Any],
    read: Counter[str],
    tmp_path: Path,
    scorer: str,
) -> None:
    """The other's turn and its own, not the history; what is decided is what one gateway decides,
    also from scores that the other one has asked a model for."""
    upstream.default = _reply
    settings = judged(upstream, tmp_path / "alone.db") if scorer == "judge" else {}
    alone = calls(upstream, [gateway_server(settings)], read)
    in_turn = calls(upstream, [gateway_server({**settings, **storage}) for _ in range(2)], read)
    assert [call.headers for call in in_turn] == [call.headers for call in alone]
    assert len({call.conversation for call in in_turn}) == 1
    assert len({call.headers["x-gateway-difficulty"] for call in in_turn[1:]}) > 1
    # Each turn is a reply and a result; the reply to the call itself is digested as well.
    assert max(call.digested for call in in_turn[2:]) <= 5
    assert max(call.folded for call in in_turn[2:]) <= 4


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a call cost and what was decided."""

    digested: int
    folded: int
    conversation: str
    headers: dict[str, str | None]


def calls(
    upstream: ScriptedUpstream, servers: Sequence[AppServer], read: Counter[str]
) -> list[Call]:
    """An agent's calls, each to the next of the gateways."""
    messages: list[Any] = [{"role": "user", "content": "Find the file. " * 30}]
    made = []
    for number in range(CALLS):
        read.clear()
        answer = httpx.post(
            f"{servers[number % len(servers)].url}/v1/chat/completions",
            json={"model": "m", "tools": [_TOOL], "messages": messages},
            timeout=ANSWER_S,
        )
        assert answer.status_code == 200, answer.text
        made.append(
            Call(
                digested=read["digested"],
                folded=read["folded"],
                conversation=answer.headers["x-gateway-conversation-id"],
                headers={name: answer.headers.get(name) for name in _DECIDED},
            )
        )
        reply = answer.json()["choices"][0]["message"]
        messages.append(reply)
        call = reply["tool_calls"][0]["id"]
        found = f"file {number}" if number % 4 else "Error: no such directory"
        messages.append({"role": "tool", "tool_call_id": call, "content": found})
    return made


def _reply(request: ReceivedRequest) -> Reply:
    """An agent's model, and a judge whose scores differ from step to step."""
    if request.json["model"] == "judge":
        return Reply(f"0.{crc32(request.messages[-1]['content'].encode()) % 100:02}")
    return Reply("Look.", tool_calls=(ToolCall("ls", {"path": f"/{len(request.messages)}"}),))


_DECIDED = tuple(f"x-gateway-{name}" for name in ("step", "state", "difficulty", "model"))
_TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
