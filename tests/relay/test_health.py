"""Probes, metrics and the one log line of a request."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway import __version__
from gateway.config import LoggingSettings
from gateway.observability.logging import configure_logging, get_logger
from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear

Relay = Callable[..., httpx.Client]


def at(client: httpx.Client, path: str) -> str:
    return str(client.base_url).removesuffix("/v1/") + path


def test_liveness(here: httpx.Client) -> None:
    """The process answers, with its version."""
    answer = here.get(at(here, "/healthz"))
    assert answer.json() == {"status": "ok", "version": __version__}


def test_readiness(relay: Relay) -> None:
    """Ready while it serves, and not while it drains: the answer says why."""
    client = relay()
    assert client.get(at(client, "/readyz")).json() == {"status": "ready", "problems": []}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_may_be_heads(here: httpx.Client, path: str) -> None:
    """Load balancers ask with HEAD."""
    answer = here.head(at(here, path))
    assert (answer.status_code, answer.content) == (200, b"")


def exposed(client: httpx.Client) -> dict[str, float]:
    """Samples by name and labels."""
    answer = client.get(at(client, "/metrics"))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_what_happened(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Requests by route, status and lane; tokens; errors; nothing in flight at the end."""
    client = relay({"router": {"num_retries": 0}})
    usage = {"stream_options": {"include_usage": True}}
    hear(client, json=HELLO)
    hear(client, json={**STREAMED, **usage})
    upstream.script(Fault(FaultKind.DROP_MID_BODY), Fault(FaultKind.SERVER_ERROR))
    hear(client, json=STREAMED)
    hear(client, json=HELLO)
    hear(client, "/embeddings", json={"model": "m", "input": "x"})
    hear(client, json=[])
    deadline = time.monotonic() + 120
    while (found := exposed(client))["gateway_requests_in_flight"] > 1:
        assert time.monotonic() < deadline
    chat = 'gateway_requests_total{lane="%s",route="chat_completions",status="%s"}'
    assert found[chat % ("native", "200")] == 3
    assert found[chat % ("native", "500")] == 1
    assert found[chat % ("none", "400")] == 1
    passed = 'gateway_requests_total{lane="native",route="passthrough",status="200"}'
    assert found[passed] == 1
    assert found['gateway_errors_total{kind="malformed"}'] == 1
    assert found['gateway_errors_total{kind="bad_request"}'] == 1
    assert found['gateway_tokens_total{direction="input"}'] == 24
    assert found['gateway_tokens_total{direction="output"}'] == 16
    assert found["gateway_requests_in_flight"] == 1  # the request for the metrics itself
    assert found['gateway_request_duration_seconds_count{route="chat_completions"}'] == 5
    assert found['gateway_overhead_seconds_count{route="chat_completions"}'] == 5


def test_labels_are_few_whatever_clients_send(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Models, paths, ids and messages of clients never become labels."""
    client = relay()
    for number in range(5):
        headers = {"x-request-id": f"id-{number}", "x-conversation-id": f"c-{number}"}
        hear(client, json={**HELLO, "model": f"zebra-{number}"}, headers=headers)
        hear(client, f"/zebra/{number}", json=HELLO)
    text = client.get(at(client, "/metrics")).text
    assert "zebra" not in text
    assert not re.search(r"id-\d|c-\d", text)


@pytest.fixture
def log() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The log lines so far, as JSON; for gateways started after this."""
    stream = io.StringIO()
    configure_logging(LoggingSettings(format="json"), stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    configure_logging(LoggingSettings(level="error", format="json"))


def lines(log: Callable[[], list[dict[str, Any]]], count: int) -> list[dict[str, Any]]:
    """The lines of `count` requests; they are written when the client has its last byte."""
    deadline = time.monotonic() + 120
    while True:
        found = [line for line in log() if line["event"] == "request"]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def test_one_line_a_request(log: Any, upstream: ScriptedUpstream, relay: Relay) -> None:
    """What was asked, what came of it, how long it took, and no word of what was said."""
    client = relay()
    hear(client, "/chat/completions?api-key=in-the-query", json={**STREAMED, "user": "u-1"})
    (line,) = lines(log, 1)
    assert line["path"] == "/v1/chat/completions"
    assert (line["method"], line["status"], line["stream"]) == ("POST", 200, True)
    assert (line["model"], line["deployment"]) == ("m", "default")
    assert line["duration_ms"] >= line["overhead_ms"] >= 0
    assert line["upstream_request_id"] == "req_00000001"
    assert line["level"] == "info"
    text = json.dumps(log())
    assert not any(word in text for word in ("one two three", "in-the-query", "u-1", "You said"))


def test_any_text_of_a_client_can_be_logged(
    log: Any, upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Half a surrogate pair in a model's name, which JSON may hold and UTF-8 may not."""
    body = b'{"model": "odd-\\ud800", "messages": []}'
    upstream.script(Reply(raw=b"{}"))
    assert hear(relay(), content=body).status == 200
    (line,) = lines(log, 1)
    assert line["model"] == "odd-\ud800"


def test_a_log_that_cannot_be_written_harms_no_request(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """The reader of the log is gone, or its disk is full: no request fails, none raises."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    closed = io.StringIO()
    closed.close()
    with contextlib.suppress(BrokenPipeError), open(write_end, "w", buffering=1) as broken:
        for stream in (broken, closed):
            configure_logging(LoggingSettings(format="json"), stream)
            client = relay()
            upstream.script(Reply("first"), Fault(FaultKind.SERVER_ERROR), Reply("second"))
            heard = [hear(client, json=body).status for body in (HELLO, STREAMED)]
            assert heard == [200, 200]
            log = get_logger("test")
            log.error("a line of our own")
            logging.getLogger("uvicorn.error").error("a line of a library's")


def test_failures_have_their_kind(log: Any, upstream: ScriptedUpstream, relay: Relay) -> None:
    """Each attempt is named, and so is the error."""
    client = relay({"router": {"num_retries": 1}})
    upstream.script(
        Fault(FaultKind.SERVER_ERROR), Fault(FaultKind.DROP_BEFORE_RESPONSE), Reply("well")
    )
    hear(client, json=HELLO)
    hear(client, json=HELLO)
    upstream.script(Fault(FaultKind.CLEAN_CUT))
    hear(client, json=STREAMED)
    first, second, third = lines(log, 3)
    assert first["attempts"] == ["default:500", "default:unreachable"]
    assert (first["status"], first["error"]) == (502, "unreachable")
    assert "error" not in second
    assert (third["status"], third["error"]) == (200, "malformed")


def test_probes_are_not_in_the_log(log: Any, relay: Relay) -> None:
    """A probe every second would bury the rest."""
    client = relay()
    for path in ("/healthz", "/readyz", "/metrics"):
        client.get(at(client, path))
    hear(client, json=HELLO)
    assert len(lines(log, 1)) == 1


def test_secrets_in_texts_are_redacted() -> None:
    """Whatever looks like a key or a bearer token is replaced, in any line."""
    stream = io.StringIO()
    configure_logging(LoggingSettings(format="json"), stream)
    get_logger("test").error("x", reason="401 for sk-proj-abcdefgh12345678 and Bearer abc.def")
    configure_logging(LoggingSettings(level="error", format="json"))
    assert "abcdefgh" not in stream.getvalue()
    assert "abc.def" not in stream.getvalue()
    assert "[redacted]" in stream.getvalue()
