"""An error inside HTTP 200 is an error: it is retried, falls back, and counts like a status."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.hearing import Heard, hear
from steering_gateway_testing.looping import Start
from steering_gateway_testing.patience import ANSWER_S, runs_at
from tests.dialects.test_mutations import BODIES, HEADERS, STREAMS
from tests.examples import by_day

SSE, JSON = "text/event-stream", "application/json"


def event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


SLOW = {"message": "slow down", "type": "rate_limit_error", "code": None}
BUSY = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
BEGUN = {"type": "response.created", "response": {"id": "r", "status": "in_progress"}}
FAILED = {"id": "r", "status": "failed", "output": [], "error": {"code": "server_error"}}
GOOGLE = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
TOLD: dict[str, tuple[str, str, bytes]] = {
    "object first": ("chat", SSE, event({"error": SLOW})),
    "behind a comment": ("chat", SSE, b": waiting\n\n" + event({"error": SLOW})),
    "bare": ("chat", SSE, json.dumps({"error": SLOW}).encode() + b"\n\n"),
    "text": ("chat", SSE, event({"error": "no capacity"})),
    "whole": ("chat", JSON, json.dumps({"error": SLOW}).encode()),
    "of a server": ("chat", JSON, b'{"object": "error", "message": "no", "code": 50001}'),
    "messages": ("messages", SSE, event(BUSY, "error")),
    "messages, whole": ("messages", JSON, json.dumps(BUSY).encode()),
    "responses": (
        "responses",
        SSE,
        event(BEGUN, "response.created")
        + event({"type": "response.failed", "response": FAILED}, "response.failed"),
    ),
    "responses, whole": ("responses", JSON, json.dumps(FAILED).encode()),
    "gemini": ("gemini", SSE, event(GOOGLE)),
    "gemini, an array": ("gemini", JSON, json.dumps([GOOGLE]).encode()),
}


def ask(server: Any, dialect: str) -> Heard:
    path, body = BODIES[dialect]
    with httpx.Client(base_url=server.url, timeout=ANSWER_S, headers=HEADERS) as client:
        return hear(client, path, json=body)


def settings(upstream: ScriptedUpstream, **router: Any) -> dict[str, Any]:
    own = {"api_base": upstream.base_url, "gemini_api_base": upstream.url}
    return {"default_upstream": own, "router": {"backoff_s": 0, **router}}


@pytest.mark.parametrize("form", by_day(TOLD, 4))
def test_an_error_before_the_first_byte_is_tried_again(
    gateway_server: Start, upstream: ScriptedUpstream, form: str
) -> None:
    """The client gets the answer of the second attempt, and knows nothing of the first."""
    dialect, kind, raw = TOLD[form]
    fine = b"".join(STREAMS[dialect])
    upstream.script(Reply(raw=(raw,), content_type=kind), Reply(raw=(fine,)))
    server = gateway_server(settings(upstream, num_retries=1))
    heard = ask(server, dialect)
    assert (heard.status, heard.body) == (200, fine)
    assert heard.headers["x-gateway-attempts"] == "2"
    (run,) = runs_at(server.url)
    assert run["totals"]["errors"] == 0


@pytest.mark.parametrize("form", by_day(TOLD, 4))
def test_an_error_that_stays_is_relayed_and_counted(
    gateway_server: Start, upstream: ScriptedUpstream, form: str
) -> None:
    """The bytes are the upstream's; the record, the metrics and the run page have an error."""
    dialect, kind, raw = TOLD[form]
    upstream.default = Reply(raw=(raw,), content_type=kind)
    server = gateway_server(settings(upstream, num_retries=0))
    heard = ask(server, dialect)
    assert (heard.status, heard.body, heard.broken) == (200, raw, None)
    (run,) = runs_at(server.url)
    assert run["totals"]["errors"] == 1
    (step,) = httpx.get(f"{server.url}/api/runs/{run['id']}").json()["steps"]
    assert (step["call"]["status"], step["call"]["error"]) == (200, "upstream")
    assert any("reported an error" in reason for reason in step["call"]["reasons"])
    assert 'gateway_errors_total{kind="upstream"} 1.0' in httpx.get(f"{server.url}/metrics").text
    assert "upstream" in httpx.get(f"{server.url}/dashboard/runs/{run['id']}").text


def test_it_falls_back_and_lets_the_deployment_rest(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """As after a status: the fallback answers, and the second failure in a row begins a rest."""
    fine = b"".join(STREAMS["chat"])

    def answer(request: Any) -> Reply:
        return Reply(raw=(event({"error": SLOW}) if request.model == "bad" else fine,))

    upstream.default = answer
    names = {"m": "bad", "other": "good"}
    listed = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{asked}",
                "api_base": upstream.base_url,
                "api_key": "k",
            },
        }
        for name, asked in names.items()
    ]
    router = {"num_retries": 0, "allowed_fails": 2, "fallbacks": [{"m": ["other"]}]}
    server = gateway_server({"model_list": listed, **settings(upstream, **router)})
    assert [ask(server, "chat").body for _ in range(2)] == [fine] * 2
    assert [request.model for request in upstream.requests] == ["bad", "good"] * 2
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'gateway_deployment_rests_total{deployment="m"} 1.0' in metrics


def test_an_error_behind_content_counts_for_the_deployment_too(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """It cannot be tried again, and the second one in a row lets the deployment rest."""
    first = event({"choices": [{"index": 0, "delta": {"content": "x"}}]})
    upstream.default = Reply(raw=(first, event({"error": SLOW})), chunk_delay_s=0.2)
    params = {"model": "openai/bad", "api_base": upstream.base_url, "api_key": "k"}
    listed = [{"model_name": "m", "litellm_params": params}]
    router = {"num_retries": 0, "allowed_fails": 2}
    server = gateway_server({"model_list": listed, **settings(upstream, **router)})
    for _ in range(2):
        assert b"slow down" in ask(server, "chat").body
    assert 'gateway_deployment_rests_total{deployment="m"} 1.0' in (
        httpx.get(f"{server.url}/metrics").text
    )
