"""A runaway agent with a sub-agent is stopped within one call of its limit, and ends cleanly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.official import anthropic, openai
from steering_gateway_testing.patience import until
from steering_gateway_testing.runaway import Runaway

Start = Callable[..., AppServer]

CALL_USD = {
    # 10,000 tokens in, 1,000 out: gpt-4o-mini at .15 and .60, claude-haiku-4-5 at 1 and 5
    # dollars a million.
    "chat": 0.0015 + 0.0006,
    "responses": 0.0015 + 0.0006,
    "messages": 0.01 + 0.005,
}
CALL_TOKENS = 11_000
LIMIT_CALLS = 4.5
LOOPING = Reply(
    "Let me run the test again.",
    tool_calls=(ToolCall("bash", {"command": "pytest"}),),
    usage=Usage(prompt_tokens=10_000, completion_tokens=1_000),
)


def budgets() -> list[dict[str, Any]]:
    """For each dialect and ending one in dollars; one in tokens for all clients of a name."""
    made: list[dict[str, Any]] = []
    for ending in ("error", "answer"):
        for dialect, cost in CALL_USD.items():
            made.append(
                {
                    "name": f"{dialect}-{ending}",
                    "scope": "tree",
                    "limits": {"usd": LIMIT_CALLS * cost},
                    "match": {"client": f"{dialect}-{ending}*"},
                    "stop_with": ending,
                }
            )
    tokens = {"tokens": int(LIMIT_CALLS * CALL_TOKENS)}
    limits = {"scope": "tree", "limits": tokens, "match": {"client": "tokens*"}}
    nagging = {"scope": "run", "limits": {"calls": 1}, "match": {"client": "nagging*"}}
    return [
        *made,
        {"name": "tokens", **limits},
        {"name": "nagging", **nagging, "stop_with": "answer"},
    ]


@pytest.fixture
def server(gateway_server: Start, upstream: ScriptedUpstream) -> AppServer:
    """A gateway with these budgets before a model that never comes to an end."""
    upstream.default = LOOPING
    return gateway_server({"budgets": budgets()})


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_it_is_stopped_within_one_call_of_its_limit(
    server: AppServer, upstream: ScriptedUpstream, streamed: bool
) -> None:
    """In each dialect, by an answer or an error: 4 or 5 calls of the tree go out, not one more."""
    refused: dict[str, Any] = {
        "chat": openai.RateLimitError,
        "responses": openai.RateLimitError,
        "messages": anthropic.RateLimitError,
    }
    for dialect, cost in CALL_USD.items():
        name = f"{dialect}-answer{streamed}"
        with Runaway(server, dialect, streamed=streamed, name=name) as agent:
            agent.run()
        assert agent.last.startswith("Stopped by the gateway: $")
        _check(server, f"{dialect}-answer", agent.sent, cost)

        name = f"{dialect}-error{streamed}"
        with Runaway(server, dialect, streamed=streamed, name=name) as agent:
            upstream.requests.clear()
            with pytest.raises(refused[dialect]) as caught:
                agent.run()
        assert caught.value.response.json()["error"]["code"] == "budget_exceeded"
        assert len(upstream.requests) == agent.sent  # the client did not try again
        _check(server, f"{dialect}-error", agent.sent, cost)


def test_tokens_are_counted_by_hand(server: AppServer, upstream: ScriptedUpstream) -> None:
    """A budget of tokens: what the account has is what the model reported."""
    with (
        Runaway(server, "chat", streamed=False, name="tokens") as agent,
        pytest.raises(openai.RateLimitError),
    ):
        agent.run()
    account = _account(server, "tokens")
    assert account["spent"]["input_tokens"] == 10_000 * agent.sent
    assert account["spent"]["output_tokens"] == 1_000 * agent.sent
    assert abs(account["used"] - 1) <= 1 / LIMIT_CALLS


def _check(server: AppServer, budget: str, sent: int, cost: float) -> None:
    account = _account(server, budget)
    assert account["spent"]["calls"] == sent
    assert account["spent"]["usd"] == pytest.approx(sent * cost, abs=1e-9)
    assert abs(account["spent"]["usd"] - LIMIT_CALLS * cost) <= cost


def _account(server: AppServer, budget: str) -> dict[str, Any]:
    """The account of a budget that was used last."""
    listed = httpx.get(f"{server.url}/api/budgets", params={"budget": budget}).json()["accounts"]
    return dict(listed[0])


def test_what_a_model_says_of_a_stop_is_none(server: AppServer) -> None:
    """Its own words with the beginning of such an answer in them cost the agent no answer."""
    said = "It printed 'Stopped by the gateway: $1' twice: Stopped by the gateway: $1."
    messages = [{"role": "user", "content": "task"}]
    seen = []
    for _ in range(3):
        seen.append(
            httpx.post(
                f"{server.base_url}/chat/completions",
                json={"model": "gpt-4o-mini", "messages": messages},
                headers={"user-agent": "nagging-quoted"},
            ).status_code
        )
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Go on."},
        ]
    assert seen == [200, 200, 200]


def test_an_agent_that_takes_no_answer_for_an_end(
    server: AppServer, upstream: ScriptedUpstream
) -> None:
    """Its next message is in the same run, which is over; after two answers it gets an error."""
    url, headers = f"{server.base_url}/chat/completions", {"user-agent": "nagging"}
    messages: list[Any] = [{"role": "user", "content": "task"}]
    seen = []
    for _ in range(6):
        body = {"model": "gpt-4o-mini", "messages": messages}
        answer = httpx.post(url, json=body, headers=headers)
        seen.append(answer.status_code)
        if answer.status_code != 200:
            break
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "FAILED"})
        if not message.get("tool_calls"):
            messages.append({"role": "user", "content": "Always call exactly one tool."})
    assert seen == [200, 200, 200, 429]
    assert len(upstream.requests) == 1
    # A refused call is recorded behind its answer.
    asked = {"agent": "nagging"}

    def recorded() -> Any:
        (run,) = httpx.get(f"{server.url}/api/runs", params=asked).json()["runs"]
        return run if run["totals"]["calls"] == 4 else None

    assert until(recorded)["totals"]["input_tokens"] == 10_000
