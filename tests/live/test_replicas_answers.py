"""Answers of the Responses API that another gateway relayed: polled, continued, and read again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.looping import STEERING, looping_model
from steering_gateway_testing.patience import DEADLINE_MS, until
from tests.dialects.test_background import ASKED, spent
from tests.dialects.test_openai_responses import OUTPUT, TASK, TOOL

Start = Callable[..., AppServer]


def two(start: Start, storage: dict[str, Any], **more: Any) -> tuple[AppServer, AppServer]:
    """Gateways on one database."""
    return start({**STEERING, **more, "storage": storage}), start(
        {**STEERING, **more, "storage": storage}
    )


def post(server: AppServer, **body: Any) -> Any:
    """The answer to one request."""
    answer = httpx.post(f"{server.base_url}/responses", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def polled(server: AppServer, name: str) -> Any:
    """The finished answer, asked for again and again."""
    while True:
        answer = httpx.get(f"{server.base_url}/responses/{name}", timeout=120)
        assert answer.status_code == 200, answer.text
        if answer.json()["status"] not in ("queued", "in_progress"):
            return answer.json()


def calls(server: AppServer) -> list[tuple[Any, ...]]:
    """State, difficulty and tokens of every step of the newest run."""
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]["id"]
    steps = httpx.get(f"{server.url}/api/runs/{run}").json()["steps"]
    told = ("input_tokens", "output_tokens", "finish_reason", "model_asked")
    return [
        (s["step_index"], s["state"], s["difficulty"], *((s["call"] or {}).get(n) for n in told))
        for s in steps
    ]


def run_in_background(here: AppServer, there: AppServer, turns: int) -> None:
    """Every call at one gateway, every poll at the other, which then makes the next call."""
    sent: dict[str, Any] = {"model": "gpt-5", "tools": [TOOL], "background": True}
    answer = post(here, input=TASK, **sent)
    for _ in range(turns):
        answer = polled(there, answer["id"])
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": OUTPUT}
            for item in answer["output"]
            if item["type"] == "function_call"
        ]
        here, there = there, here
        answer = post(here, input=results, previous_response_id=answer["id"], **sent)
    polled(there, answer["id"])


def test_a_background_run_over_two_gateways_is_the_same_run(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """What one gateway has asked for and another has polled is recorded once, with the steps,
    states, tokens and the end that one gateway alone records."""
    upstream.default = looping_model(4)
    alone = gateway_server(STEERING)
    run_in_background(alone, alone, 4)
    here, there = two(gateway_server, {"url": postgres_url})
    run_in_background(here, there, 4)
    assert calls(here) == calls(alone)
    assert spent(there) == spent(alone)


def test_a_pending_answer_survives_a_restart(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Any
) -> None:
    """With a file too: the gateway that is polled is not the process that asked."""
    upstream.default = Reply("Done.", id="resp_1")
    storage = {"path": str(tmp_path / "shared.db")}
    first = gateway_server({**STEERING, "storage": storage})
    post(first, **ASKED)
    first.stop()
    second = gateway_server({**STEERING, "storage": storage})
    assert spent(second)[0] == 0
    for _ in range(2):
        polled(second, "resp_1")
        assert spent(second) == (1, 0, 12, 8)


def test_both_poll_one_records(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """The gateway that asked does not count again what the other has recorded."""
    upstream.default = Reply("Done.", id="resp_1")
    here, there = two(gateway_server, {"url": postgres_url})
    post(here, **ASKED)
    for server in (there, here, there, here):
        polled(server, "resp_1")
        assert spent(here) == spent(there) == (1, 0, 12, 8)


@pytest.mark.parametrize("slow", [False, True], ids=["reserved", "store slow"])
def test_whoever_sees_the_answer_pays_for_it(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str, slow: bool
) -> None:
    """The reservation of a call in the background ends with the answer, once, whichever gateway
    is asked for it. One that was made in memory, because the store was slow for the budgets, ends
    when another gateway may see the answer; the answer is paid all the same."""
    upstream.default = Reply("Done.", id="resp_1")
    budget = {"name": "all", "scope": "tenant", "limits": {"tokens": 10**6}}
    # Counted in memory, because the store takes long, it would be no reservation of both.
    control = {"store_wait_ms": DEADLINE_MS}
    here, there = two(gateway_server, {"url": postgres_url}, budgets=[budget], control=control)
    ledger = here.app.runtime.accounting.ledger
    if slow:
        ledger._failed("slow")
        ledger._again_at = math.inf  # until the call has been made
    post(here, **ASKED)
    ledger._again_at = 0.0

    def account() -> tuple[int, ...]:
        (found,) = httpx.get(f"{there.url}/api/budgets").json()["accounts"]
        spent = found["spent"]
        used = (spent["calls"], spent["input_tokens"], spent["output_tokens"])
        return (found["reserved"]["calls"], found["reserved"]["input_tokens"] > 0, *used)

    # Reported within control.poll_s.
    until(lambda: ledger.durable and not ledger.waiting)
    assert account() == ((0, False, 0, 0, 0) if slow else (1, True, 0, 0, 0))
    for server in (there, here, there):
        polled(server, "resp_1")
        # What the other gateway had reserved is reported within control.poll_s.
        until(lambda: account() == (0, False, 1, 12, 8))


def test_a_call_that_was_reserved_in_memory_is_paid_after_a_restart(
    gateway_server: Start, upstream: ScriptedUpstream, either_store: dict[str, str]
) -> None:
    """By the next process, once: nothing of it stays reserved."""
    upstream.default = Reply("Done.", id="resp_1")
    budget = {"name": "all", "scope": "tenant", "limits": {"tokens": 10**6}}
    settings = {**STEERING, "storage": either_store, "budgets": [budget]}
    first = gateway_server(settings)
    ledger = first.app.runtime.accounting.ledger
    ledger._failed("slow")
    ledger._again_at = math.inf
    post(first, **ASKED)
    first.stop()
    second = gateway_server(settings)
    polled(second, "resp_1")
    (found,) = httpx.get(f"{second.url}/api/budgets").json()["accounts"]
    assert found["spent"]["calls"] == 1
    assert (found["spent"]["input_tokens"], found["spent"]["output_tokens"]) == (12, 8)
    assert found["reserved"]["calls"] == 0


def test_the_deployment_that_stores_an_answer_is_known(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """Another gateway reads it, and continues from it, where it is stored."""
    with ScriptedUpstream() as other:
        numbers = itertools.count()
        for provider in (upstream, other):
            provider.default = lambda _: Reply("Done.", id=f"resp_{next(numbers)}")
        places = [
            {
                "model_name": "m",
                "litellm_params": {"model": "openai/x", "api_base": p, "api_key": k},
            }
            for p, k in ((upstream.base_url, "one"), (other.base_url, "two"))
        ]
        here, there = two(gateway_server, {"url": postgres_url}, model_list=places)
        for number in range(4):
            first = post(here, model="m", input=f"Task {number}.")
            keeper = max((upstream, other), key=lambda each: _newest(each, f"Task {number}."))
            polled(there, first["id"])
            assert keeper.last.target == f"/v1/responses/{first['id']}"
            post(there, model="m", input="Go on.", previous_response_id=first["id"])
            assert "previous_response_id" in keeper.last.body.decode()
            assert "Go on." in keeper.last.body.decode()


def _newest(upstream: ScriptedUpstream, text: str) -> bool:
    return any(text in request.body.decode() for request in upstream.requests)


def test_guidance_in_the_instructions_is_taken_out_at_the_other_gateway(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """A stored answer repeats the instructions of the client, wherever it is read."""
    upstream.default = looping_model(6)
    here, there = two(gateway_server, {"url": postgres_url})
    history: list[Any] = [{"role": "user", "content": TASK}]
    for _ in range(7):
        told = {"instructions": "Be brief.", "tools": [TOOL], "model": "gpt-5"}
        answer = post(here, input=history, **told)
        read = polled(there, answer["id"])
        assert read["instructions"] == answer["instructions"] == "Be brief."
        history += answer["output"]
        history += [
            {"type": "function_call_output", "call_id": item["call_id"], "output": OUTPUT}
            for item in answer["output"]
            if item["type"] == "function_call"
        ]
    sent = [r.fields["instructions"] for r in upstream.requests if "instructions" in r.fields]
    assert sent[-1] != "Be brief."
