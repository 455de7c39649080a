"""Remembered request bytes make the next request cheaper, and change nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import GUIDING
from tests.examples import by_day

Start = Callable[..., AppServer]
Body = tuple[str, bytes]
TEXTS = ["ok", "d\u00e9j\u00e0 \U0001f600", 'a "quoted" ]}', "\\u005b[{", "x" * 300, ""]
ODD = ["1e400", "123456789012345678901234567890", "-0", "1.0", '"\\ud800"', "[]", "null"]
RESULT = '"FAILED tests/test_a.py"'


def message(rng: random.Random, turn: int) -> list[str]:
    """One turn as JSON text: a call that is always the same, and its result."""
    odd, text = rng.choice(ODD), json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5)
    call = (
        f'{{"id":"call_{turn}","type":"function","function":'
        '{"name":"bash","arguments":"{\\"command\\": \\"make\\"}"}}'
    )
    said = f'{{"role":"assistant","content":{text},"tool_calls":[{call}],"x":{odd}}}'
    return [said, f'{{"role":"tool","tool_call_id":"call_{turn}","content":{RESULT}}}']


def bodies(seed: int) -> Iterator[Body]:
    """The requests of a run, with the byte forms that different clients write."""
    rng = random.Random(seed)
    comma, colon = rng.choice([(",", ":"), (", ", ": "), (" ,\n", " : ")])
    opening = f'{{"role":"user","content":"Task {seed}. {"m" * 300}"}}'
    system = '{"role":"system","content":"You repair programs."}'
    listed = [system, opening] if rng.random() < 0.7 else [opening]
    tail = rng.choice([[], ['"temperature": 1.0'], ['"tools": [{"function": {"name": "bash"}}]']])
    for turn in range(9):
        model = "other" if rng.random() < 0.1 else "usual"
        behind = [*tail]
        if rng.random() < 0.2:
            behind.append(f'"n{turn}": {rng.choice(ODD)}')
        if rng.random() < 0.1:
            behind.append('"temperature": 0, "temperature": 0.50')
        if rng.random() < 0.1:
            behind.append(f'"messages": [{comma.join(listed[-3:])}]')
        keys = [f'"model"{colon}"{model}"', f'"messages"{colon}[{comma.join(listed)}]', *behind]
        if rng.random() < 0.1:
            keys = [*keys[1:], keys[0]]
        raw = ("{" + comma.join(keys) + rng.choice(["", " ", "\n"]) + "}").encode()
        if rng.random() < 0.1:
            raw = raw.replace(b"FAILED", b"FAILED\xff")
        path = "messages" if rng.random() < 0.15 else "chat/completions"
        yield path, raw
        if rng.random() < 0.2:
            yield path, raw
        listed += message(rng, turn)


async def sent(
    server: AppServer, upstream: ScriptedUpstream, http: httpx.AsyncClient, runs: list[list[Body]]
) -> list[Any]:
    """The upstream requests and the gateway's headers, for runs that alternate."""
    seen: list[Any] = []
    names: dict[str, int] = {}
    for at in range(max(map(len, runs))):
        for run in runs:
            if at >= len(run):
                continue
            path, raw = run[at]
            before = len(upstream.requests)
            answer = await http.post(f"{server.base_url}/{path}", content=raw)
            said = {k: v for k, v in answer.headers.items() if k.startswith("x-gateway-")}
            said.pop("x-gateway-overhead-ms", None)
            name = said.pop("x-gateway-conversation-id", "")
            said["conversation"] = str(names.setdefault(name, len(names)))
            seen.append(
                ([r.body for r in list(upstream.requests)[before:]], answer.status_code, said)
            )
    return seen


@pytest.mark.parametrize("count", [3, pytest.param(24, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "limits", by_day([{"max_prefix_memory_mb": 0.01}, {}, {"max_transcripts": 2}], 1)
)
async def test_the_same_bytes_go_out_with_and_without_it(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    limits: Any,
    count: int,
) -> None:
    """With numbers, escapes, doubled keys, invalid UTF-8, changing models and dialects: guidance
    and routes are the same as when every body is read from its start."""
    call = ToolCall("bash", {"command": "make"}, id="call_0")
    upstream.default = Reply("Once more.", tool_calls=(call,))
    limits = {"max_transcripts_in_memory": 2} if "max_transcripts" in limits else limits
    settings = {**GUIDING, "model_routing": {"NORMAL": "normal"}}
    on, off = (
        gateway_server({**settings, "steering": {**GUIDING["steering"], **some}})
        for some in (limits, {"max_prefix_memory_mb": 0})
    )
    runs = [list(bodies(seed)) for seed in range(count)]
    with_it = await sent(on, upstream, http, runs)
    without = await sent(off, upstream, http, runs)
    assert with_it == without
    counts = Counter(
        (status, said.get("x-gateway-model"), bool(said.get("x-gateway-guidance")))
        for _, status, said in with_it
    )
    assert counts[200, "normal", True] > count
    assert counts[200, "normal", False] > count
