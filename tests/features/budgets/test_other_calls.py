"""What is counted beside the three dialects: other routes, the judge, the embedder."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.agents import Agent
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.official import openai
from steering_gateway_testing.patience import until
from tests.live.test_judge import asked, judging, results
from tests.live.test_judge import settings as with_judge

Start = Callable[..., AppServer]
MODEL = "text-embedding-3-small"
READ = 10_000
EMBEDDED_USD = READ * 0.02e-6
USED = {"usd": 0.0, "input_tokens": 0, "output_tokens": 0, "calls": 0}


def budget(**limits: float) -> dict[str, Any]:
    """Of one tenant."""
    ladder = [{"at": 0.5, "do": "warn"}, {"at": 1.0, "do": "stop"}]
    return {"name": "all", "scope": "tenant", "limits": limits, "ladder": ladder}


def spent(server: AppServer) -> dict[str, Any]:
    """What the accounts of the budget have used, together."""
    accounts = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
    assert all(account["reserved"] == USED for account in accounts)
    return {name: sum(a["spent"][name] for a in accounts) for name in USED}


@pytest.fixture
def client_of() -> Callable[[AppServer], openai.OpenAI]:
    """The official client of a gateway, which asks once."""
    return lambda server: openai.OpenAI(api_key="k", base_url=server.base_url, max_retries=0)


def test_embeddings_count_and_stop(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    client_of: Callable[[AppServer], openai.OpenAI],
) -> None:
    """What the answers report, at the model's price; warned first, then refused unsent."""
    upstream.default = Reply(usage=Usage(prompt_tokens=READ))
    server = gateway_server({"budgets": [budget(input_tokens=3 * READ)]})
    with client_of(server) as client:
        for number in range(3):
            create = client.embeddings.with_raw_response.create
            answer = create(model=MODEL, input=f"text {number}")
            assert len(answer.parse().data) == 1
            assert spent(server)["calls"] == number + 1
        assert answer.headers["x-gateway-budget"].endswith("metric=input_tokens;step=warn")
        with pytest.raises(openai.RateLimitError) as refused:
            client.embeddings.create(model=MODEL, input="one more")
    assert refused.value.code == "budget_exceeded"
    assert len(upstream.requests) == 3
    used = spent(server)
    assert used.pop("usd") == pytest.approx(3 * EMBEDDED_USD)
    assert used == {"input_tokens": 3 * READ, "output_tokens": 0, "calls": 3}


def test_what_a_route_reports_or_may_have_used(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Legacy completions and compressed bodies by their usage, a stream that reports none by its
    estimate, a failure as a call; what asks no model does not count."""
    upstream.default = Reply("ok", usage=Usage(prompt_tokens=1_000, completion_tokens=100))
    server = gateway_server({"budgets": [budget(usd=1)], "router": {"num_retries": 0}})
    v1 = server.base_url
    told = {"model": "gpt-3.5-turbo-instruct", "prompt": "Say ok.", "max_tokens": 50}

    assert httpx.post(f"{v1}/completions", json=told).status_code == 200
    used = spent(server)
    assert (used["input_tokens"], used["output_tokens"], used["calls"]) == (1_000, 100, 1)

    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi."}]}
    for streamed in (False, True):
        asked: dict[str, Any] = {**body, "stream": streamed}
        asked |= {"stream_options": {"include_usage": True}} if streamed else {}
        packed = gzip.compress(json.dumps(asked).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        path = f"{v1}/chat/completions"
        assert httpx.post(path, content=packed, headers=headers).status_code == 200
    used = spent(server)
    assert (used["input_tokens"], used["output_tokens"], used["calls"]) == (3_000, 300, 3)

    assert httpx.post(f"{v1}/completions", json={**told, "stream": True}).status_code == 200
    used = spent(server)
    assert used["calls"] == 4
    assert 3_900 < used["input_tokens"] < 4_100  # as calls of the model had
    assert used["output_tokens"] == 350  # its own maximum

    upstream.script(Fault(FaultKind.SERVER_ERROR))
    assert httpx.post(f"{v1}/embeddings", json={"model": MODEL, "input": "x"}).is_error
    assert spent(server) == {**used, "calls": 5}
    counted = {"model": "claude-haiku-4-5", "messages": body["messages"]}
    httpx.post(f"{v1}/messages/count_tokens", json=counted)
    httpx.post(f"{v1}/files", content=b"a,b", headers={"content-type": "text/csv"})
    assert spent(server)["calls"] == 5


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        yield client


async def test_a_judge_spends_its_run_s_budget(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Its tokens and dollars count on the run, not its calls; used up, it is not asked."""
    usage = Usage(prompt_tokens=1_000, completion_tokens=1)
    upstream.default = judging(Reply("0.9", usage=usage))
    limits = {"name": "run", "scope": "run", "limits": {"output_tokens": 10**6}}
    settings = with_judge(upstream, tmp_path / "runs.db")
    settings["model_list"][0]["litellm_params"]["input_cost_per_token"] = 1e-6
    settings["model_list"][0]["litellm_params"]["output_cost_per_token"] = 1e-6
    settings["control"] = {"unpriced_usd_per_million": 0}  # that of the agent's model
    server = gateway_server({**settings, "budgets": [limits]})
    agent = Agent(http, server.base_url)
    answers = await agent.run(3)
    assert len(asked(upstream)) == 2

    def judged() -> bool:
        account = httpx.get(f"{server.url}/api/budgets").json()["accounts"][0]
        return account["spent"]["usd"] >= 2 * 1_001e-6

    until(judged)
    account = (await http.get(f"{server.url}/api/budgets")).json()["accounts"][0]
    assert account["spent"]["calls"] == 3
    assert account["spent"]["usd"] == pytest.approx(2 * 1_001e-6)
    order = {"budget": "run", "subject": account["subject"], "limits": {"output_tokens": 1}}
    raised = await http.post(f"{server.url}/api/budgets/raise", json=order, headers=CONTROL)
    assert raised.status_code == 200
    assert answers[-1].conversation
    await agent.send()
    assert len(asked(upstream)) == 2
    assert (await results(http, server))["budget"] == 1


async def test_a_judge_that_fails_spends_nothing(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Its estimate is given back, and does not count as if it had answered."""
    upstream.default = judging(Fault(FaultKind.SERVER_ERROR))
    limits = {"name": "run", "scope": "run", "limits": {"output_tokens": 10**6}}
    settings = with_judge(upstream, tmp_path / "runs.db")
    settings["model_list"][0]["litellm_params"]["input_cost_per_token"] = 1e-6
    settings["control"] = {"unpriced_usd_per_million": 0}  # that of the agent's model
    server = gateway_server({**settings, "budgets": [limits]})
    await Agent(http, server.base_url).run(2)
    assert len(asked(upstream)) == 1
    until(lambda: spent(server)["calls"] == 2)
    (account,) = (await http.get(f"{server.url}/api/budgets")).json()["accounts"]
    assert account["estimated"] == USED


def test_a_stop_may_be_a_401(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """For clients that send all else again; what only waits for others stays a 429."""
    settings = {"control": {"stop_status": 401, "pause_wait_s": 0}, "budgets": [budget(calls=1)]}
    server = gateway_server(settings)
    named = {"x-session-id": "one"}
    made = openai.OpenAI(api_key="k", base_url=server.base_url, default_headers=named)
    with made as client:
        ask = client.chat.completions.with_raw_response.create
        hello: Any = [{"role": "user", "content": "Hi."}]
        found = ask(model="m", messages=hello).headers["x-gateway-conversation-id"]
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(model="m", messages=[*hello, *hello])
        assert refused.value.code == "budget_exceeded"
        once = client.with_options(max_retries=0).chat.completions
        kinds = {"stop": openai.AuthenticationError, "pause": openai.RateLimitError}
        for verb, kind in kinds.items():
            httpx.post(
                f"{server.url}/api/conversations/{found}/{verb}", json={}, headers=CONTROL
            ).raise_for_status()
            with pytest.raises(kind):
                once.create(model="m", messages=[*hello, *hello])
    assert len(upstream.requests) == 1
