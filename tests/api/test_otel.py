"""OpenTelemetry: what leaves, where to, and that nothing leaves unasked."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.exchange import Exchange
from gateway.observability.otel import SCHEMA_URL, Telemetry, caller, open_telemetry
from gateway.steering.identity import ConversationSettings, identify
from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from steering_gateway_testing.loopback import OneAnswer, an_answer
from steering_gateway_testing.patience import until
from tests.api.conftest import Start

try:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

needs_extra = pytest.mark.skipif(not INSTALLED, reason="the extra otel is not installed")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_nothing_is_opened_unasked() -> None:
    """Without an exporter's address, or with the SDK switched off."""
    assert open_telemetry({}, "1") is None
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}
    assert open_telemetry(asked, "1") is None


@pytest.mark.skipif(INSTALLED, reason="the extra otel is installed")
def test_a_missing_extra_is_named() -> None:
    """The error names the extra to install."""
    with pytest.raises(ConfigError, match="extra `otel`"):
        open_telemetry({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "1")


class Kept:
    """Telemetry that stays in memory."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(self.spans))
        self.telemetry = Telemetry(traces.get_tracer("gateway"), lambda: None)


@needs_extra
def test_a_call_is_a_span(start: Start, upstream: ScriptedUpstream) -> None:
    """With the conventions' names, the run's state, and the caller's trace; without texts."""
    server, kept = start(model_routing={"NORMAL": "gpt-4o-mini"}), Kept()
    server.app.runtime.telemetry = kept.telemetry
    with client_of(server) as client:
        client.headers["traceparent"] = f"00-{TRACE}-{SPAN}-01"
        agent = LoopingAgent(client, upstream, "My secret is in the kitchen.")
        for _ in range(3):
            agent.step()
        client.get("/v1/models")
    until(lambda: len(kept.spans.get_finished_spans()) == 3)
    spans = kept.spans.get_finished_spans()
    last = spans[-1]
    found = dict(last.attributes)
    assert last.name == "chat gpt-4o"
    assert f"{last.context.trace_id:032x}" == TRACE
    assert f"{last.parent.span_id:016x}" == SPAN
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == "openai"
    assert found["gen_ai.request.model"] == "gpt-4o-mini"
    assert found["gateway.request.model"] == "gpt-4o"
    assert found["gen_ai.response.model"] == "gpt-4o-mini"
    assert found["gen_ai.response.id"].startswith("chatcmpl-")
    assert found["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert found["server.address"] == "127.0.0.1"
    assert 0 < found["llm.cost.total"] < 1
    assert found["gen_ai.usage.input_tokens"] > 0
    assert f"{found['gen_ai.conversation.id']}.0" == agent.run_id
    assert (found["gateway.step"], found["gateway.state"]) == (2, "NORMAL")
    assert last.status.is_unset
    assert last.end_time > last.start_time
    assert "kitchen" not in str([dict(span.attributes) for span in spans])


class Listening:
    """What a span would be made of."""

    def __init__(self) -> None:
        self.texts: list[dict[str, str]] = []

    def finished(self, exchange: Exchange, duration_s: float, trace_parent: str) -> None:
        if exchange.request.model:
            self.texts.append(exchange.texts)

    def close(self) -> None:
        """Nothing is kept."""


def test_texts_are_exported_where_that_is_asked_for(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """In each API, as the conventions have them: the newest messages and the answer with its tool
    calls, cut; unasked, none of it."""
    server, heard = start(otel={"content": True, "max_chars": 60}), Listening()
    server.app.runtime.telemetry = heard
    upstream.default = Reply("On the shelf.", tool_calls=(ToolCall("look", '{"at": "shelf"}'),))
    words = "Where is it? " + "x" * 99
    question = [{"role": "user", "content": words}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": question, "stream": True},
        "/v1/responses": {"input": words},
        "/v1/messages": {"messages": question, "max_tokens": 99},
    }
    with client_of(server) as client:
        for number, (path, body) in enumerate(bodies.items(), start=1):
            client.post(path, json={"model": "gpt-4o", **body}).raise_for_status()
            until(lambda: len(heard.texts) == number)  # noqa: B023 - asked at once
            found = heard.texts[-1]
            (given,) = json.loads(found["gen_ai.input.messages"])
            assert given == {
                "role": "user",
                "parts": [{"type": "text", "content": words[:60] + "…"}],
            }, path
            (answer,) = json.loads(found["gen_ai.output.messages"])
            text, call = answer["parts"]
            assert (text["content"], call["name"]) == ("On the shelf.", "look"), path
            assert json.loads(call["arguments"]) == {"at": "shelf"}
            assert found["input.value"] == found["gen_ai.input.messages"]
            assert found["openinference.span.kind"] == "LLM"
    server, heard = start(), Listening()
    server.app.runtime.telemetry = heard
    with client_of(server) as client:
        client.post("/v1/chat/completions", json={"model": "m", "messages": question})
        until(lambda: heard.texts)
    # No text, and the client names neither a session nor a person.
    names = {name for name in heard.texts[0] if not name.startswith("gen_ai.response.")}
    assert names == {"server.address"}


@needs_extra
def test_a_failure_is_named(start: Start, upstream: ScriptedUpstream) -> None:
    """With its kind, and without tokens."""
    server, kept = start(router={"num_retries": 0}), Kept()
    server.app.runtime.telemetry = kept.telemetry
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Find it"}]}
    with client_of(server) as client:
        client.post("/v1/chat/completions", json=body)
        upstream.default = Reply(raw=b'{"error": {"message": "no"}}', status=500)
        client.post("/v1/chat/completions", json=body)
    until(lambda: len(kept.spans.get_finished_spans()) == 2)
    right, wrong = (dict(span.attributes or {}) for span in kept.spans.get_finished_spans())
    assert (right.get("error.type"), wrong["error.type"]) == (None, "500")
    assert "gen_ai.usage.input_tokens" in right
    assert "gen_ai.usage.input_tokens" not in wrong


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An OTLP receiver: its address, and (path, body) of what was posted."""
    posted: list[tuple[str, bytes]] = []

    def keep(head: bytes, body: bytes) -> bytes:
        if b"content-encoding: gzip" in head.lower():
            body = gzip.decompress(body)
        posted.append((head.split()[1].decode(), body))
        return an_answer()

    with OneAnswer(keep) as server:
        yield server.url, posted


@needs_extra
def test_what_is_left_is_sent_at_the_end(
    start: Start,
    upstream: ScriptedUpstream,
    collector: tuple[str, list[tuple[str, bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traces go to the collector that the standard variable names."""
    address, posted = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    server = start()
    with client_of(server) as client:
        LoopingAgent(client, upstream, "Find it").answer()
    server.stop()
    assert {path for path, _ in posted} == {"/v1/traces"}


def exported(posted: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """The attributes of each span that a collector was sent."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    def values(attributes: Any) -> dict[str, Any]:
        return {
            each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes
        }

    found = []
    for path, body in posted:
        if path != "/v1/traces":
            continue
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                assert scope.schema_url == SCHEMA_URL
                for span in scope.spans:
                    found.append(values(span.attributes))
    return found


CLAUDE = {"device_id": "d" * 64, "account_uuid": "acc-1", "session_id": "sess-1"}


@needs_extra
def test_sessions_and_readings_are_exported(
    start: Start,
    upstream: ScriptedUpstream,
    collector: tuple[str, list[tuple[str, bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a collector is sent by the standard exporter: a run that goes round in circles, in the
    session that the client named."""
    address, posted = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    server = start()
    with client_of(server) as client:
        client.headers["x-session-id"] = "sess-9"
        agent = LoopingAgent(client, upstream, "My secret is in the kitchen.")
        for _ in range(12):
            agent.step()
    server.stop()
    calls = exported(posted)
    assert len(calls) == 12
    newest = calls[-1]
    assert {call["session.id"] for call in calls} == {"sess-9"}
    assert newest["gen_ai.conversation.id"] != "sess-9"
    assert newest["gateway.monitors.fired"]
    assert 0 < newest["gateway.difficulty"] <= 1
    assert "kitchen" not in str(calls)


@pytest.mark.parametrize(
    ("headers", "body", "found"),
    [
        ({}, {}, {"user.id": "team"}),
        ({}, {"user": "ann", "prompt_cache_key": "shared"}, {"user.id": "ann"}),
        ({}, {"safety_identifier": "b-2", "user": "ann"}, {"user.id": "b-2"}),
        (
            {"x-claude-code-session-id": "sess-1", "x-claude-code-agent-id": "a7"},
            {"metadata": {"user_id": json.dumps(CLAUDE)}},
            {"session.id": "sess-1", "user.id": "acc-1"},
        ),
        (
            {},
            {"metadata": {"user_id": json.dumps({**CLAUDE, "account_uuid": ""})}},
            {"session.id": "sess-1", "user.id": "d" * 64},
        ),
        (
            {},
            {"metadata": {"user_id": "user_0a1b_account_acc-1_session_5e55"}},
            {"session.id": "5e55", "user.id": "user_0a1b_account_acc-1"},
        ),
        ({}, {"user": "sk-ant-oat01-" + "a1B2" * 20}, {"user.id": "team"}),
        ({}, {"user": "gw-" + "A" * 43}, {"user.id": "team"}),
        ({"x-session-id": "AIza" + "b1C" * 11 + "dd"}, {"user": ["x"]}, {"user.id": "team"}),
        ({}, {"metadata": {"user_id": "{" * 9}, "user": {}}, {"user.id": "team"}),
    ],
)
def test_who_calls_is_read_from_what_clients_send(
    headers: dict[str, str], body: dict[str, Any], found: dict[str, str]
) -> None:
    """The person before the gateway key's name, never a session as a person, never a secret."""
    assert caller(body, identify(headers, body, ConversationSettings()), "team") == found


@needs_extra
def test_the_provider_of_another_login_is_named(start: Start, upstream: ScriptedUpstream) -> None:
    """By the conventions' name, though no deployment was asked for."""
    bases = {"gemini_api_base": upstream.base_url.removesuffix("/v1")}
    server, kept = start(default_upstream=bases), Kept()
    server.app.runtime.telemetry = kept.telemetry
    with client_of(server) as client:
        body = {"contents": [{"role": "user", "parts": [{"text": "Say it"}]}]}
        client.post("/v1beta/models/gemini-2.5-pro:generateContent", json=body)
    until(kept.spans.get_finished_spans)
    (span,) = kept.spans.get_finished_spans()
    assert span.attributes["gen_ai.provider.name"] == "gcp.gemini"
