"""OpenTelemetry traces: the forms in which instrumentations write a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.observability import OtelSettings
from gateway.features.history.find import identify, named
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.observability.otel import call_texts
from gateway.steering.transcript.steps import extract
from gateway.upstream.tokens import tokens_of

LOGS = Path(__file__).parent / "logs" / "opentelemetry"
SAID = [("message", "Repair the test."), ("message", "No, keep the old name.")]


def read(path: Path) -> list[Session]:
    return [each for found in named([path]) for each in found.sessions(LogFile(found.path))]


def acts(session: Session) -> list[tuple[str, str]]:
    return [(turn.kind, turn.text) for turn in session.human]


def test_a_trace_is_a_session() -> None:
    """Of a real instrumentation."""
    (session,) = read(LOGS / "attributes.otlp.jsonl")
    assert session.project == "demo-agent"
    assert session.compactions == [13]
    assert acts(session) == [*SAID, ("message", "Now the docs.")]
    assert session.messages[0] == {"role": "system", "content": "You are a demo."}
    steps = extract(session.messages)
    assert [[action.observation for action in step.actions] for step in steps] == [
        *([["FAILED: 1 test"]] * 2 + [[]]) * 2,
        [],
    ]
    assert [len(session.messages[call.position]) > 1 for call in session.calls] == [True] * 7
    assert {session.messages[call.position]["role"] for call in session.calls} == {"assistant"}
    assert {call.model for call in session.calls} == {"gpt-4o-mini"}
    given = [sum(tokens_of(call.usage).values()) for call in session.calls]
    assert given == [112, 114, 116, 118, 120, 122, 113]
    assert None not in (session.started, session.ended)


def span(number: int, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A trace of one span as a collector writes it."""
    values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **values}
    attributes = [
        {
            "key": key,
            "value": {"intValue": each} if isinstance(each, int) else {"stringValue": each},
        }
        for key, each in values.items()
    ]
    found: dict[str, Any] = {"name": "chat m", "traceId": "0a", "spanId": f"{number:016x}"}
    found |= {"startTimeUnixNano": f"{1777629600 + number}000000000", "attributes": attributes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [found | more]}]}]}


def write(path: Path, *spans: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in spans))
    return path


def test_this_gateways_own_traces_are_read(tmp_path: Path) -> None:
    """They hold what is new in each call, and group it by conversation."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Kept."},
    ]
    given: list[list[dict[str, Any]]] = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": SAID[0][1]}],
        [{"role": "tool", "tool_call_id": "c", "content": "exit status 1"}],
        [{"role": "user", "content": SAID[1][1]}],
    ]
    history: list[dict[str, Any]] = []
    spans = []
    for number, (new, answer) in enumerate(zip(given, answers, strict=True)):
        history += new
        completion = {"choices": [{"message": answer, "finish_reason": "stop"}]}
        texts = call_texts(history, completion, OtelSettings(content=True), mask=False)
        usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 2}
        spans.append(span(number, {**texts, **usage, "gen_ai.conversation.id": "conv"}))
        history.append(answer)
    (session,) = read(write(tmp_path / "own.jsonl", *reversed(spans)))
    assert session.id == "conv"
    assert acts(session) == SAID
    assert session.compactions == []
    assert extract(session.messages) == extract(history)


def test_a_call_that_two_spans_report_counts_once(tmp_path: Path) -> None:
    """A client's and the gateway's below it; spans of agents and tools are no calls."""
    agent = span(0, {"gen_ai.operation.name": "invoke_agent"})
    outer, inner = span(1, {}, parentSpanId="0" * 16), span(2, {}, parentSpanId=f"{1:016x}")
    (session,) = read(write(tmp_path / "both.jsonl", agent, outer, inner))
    assert len(session.calls) == 1


def test_an_agent_with_other_instructions_is_a_session_with_a_parent(tmp_path: Path) -> None:
    """Both in one trace, and each with its own history."""

    def asked(system: str, *texts: str) -> dict[str, Any]:
        parts = [{"role": "user" if n % 2 == 0 else "assistant", "parts": [
            {"type": "text", "content": text}]} for n, text in enumerate(texts)]  # fmt: skip
        given = json.dumps([{"type": "text", "content": system}])
        return {"gen_ai.system_instructions": given, "gen_ai.input.messages": json.dumps(parts)}

    first, helper = span(0, asked("Lead.", "go")), span(1, asked("Help.", "look"))
    last = span(2, asked("Lead.", "go", "", "thanks"))
    own, other = read(write(tmp_path / "two.jsonl", first, helper, last))
    assert (own.parent, other.parent) == ("", own.id)
    assert [turn.text for turn in own.human] == ["go", "thanks"]
    assert (len(own.calls), len(other.calls)) == (2, 1)


def test_a_failed_call_is_no_answer(tmp_path: Path) -> None:
    """Its messages come again with the next one."""
    failed = span(0, {"error.type": "429"}, status={"code": 2})
    assert [len(each.calls) for each in read(write(tmp_path / "f.jsonl", failed, span(1, {})))] == [
        1
    ]


def test_cached_tokens_are_counted_once(tmp_path: Path) -> None:
    """Inside the input, as the conventions say, or beside it, as some instrumentations do."""
    prefix = "gen_ai.usage."
    cached = {f"{prefix}cache_read.input_tokens": 90, f"{prefix}output_tokens": 1}
    spans = [
        span(n, {**cached, f"{prefix}input_tokens": given}) for n, given in enumerate((100, 10))
    ]
    (session,) = read(write(tmp_path / "cached.jsonl", *spans))
    assert [sum(tokens_of(call.usage).values()) for call in session.calls] == [101, 101]
    assert [tokens_of(call.usage)["cache_read"] for call in session.calls] == [90, 90]


@pytest.mark.parametrize("text", ['{"traceId": 1}', '{"a": "resourceSpans"}', '{"gen_ai.x": 1}'])
def test_other_documents_are_not_taken_for_traces(tmp_path: Path, text: str) -> None:
    """The mark of a trace is a key."""
    path = tmp_path / "other.json"
    path.write_text(text)
    assert identify(path).format is None


def test_values_of_any_type_do_no_harm(tmp_path: Path) -> None:
    """What is no span is named as unread."""
    odd: list[Any] = [span(1, {}, attributes=5, traceId=3), {"resourceSpans": 7}]
    odd += [span(2, {}, traceId=[1], spanId={}, startTimeUnixNano="never")]
    odd += [{"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}, {"other": 1}]
    odd += [span(3, {"gen_ai.input.messages": '[4, {"role": 5, "parts": [6]}]'})]
    path = write(tmp_path / "odd.jsonl", *odd)
    log = LogFile(path)
    (found,) = named([path])
    sessions = list(found.sessions(log))
    assert sum(len(each.calls) for each in sessions) == 2
    assert dict(log.reasons) == {"no span": 1}
