"""OpenTelemetry: one span per model call.

On when a standard variable such as `OTEL_EXPORTER_OTLP_ENDPOINT` names an exporter and the extra
`otel` is installed. Texts are exported only with `otel.content`. Source: OpenTelemetry semantic
conventions for generative AI (`gen_ai.*`), and OpenInference's for texts, sessions and users
(`input.value`, `session.id`, `user.id`)."""

# An optional dependency: its types are missing where it is not installed.
# mypy: disable-error-code="import-not-found"

import json
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gateway.config.observability import OtelSettings
from gateway.data_files import read_toml
from gateway.dialects import DIALECTS
from gateway.errors import ConfigError
from gateway.exchange import Exchange
from gateway.steering.identity import Identity
from gateway.steering.identity.ids import clean_id
from gateway.text.secrets import find_secrets, mask_secrets
from gateway.values import FieldDict, Fields, Texts
from gateway.wire.coerce import as_mapping, as_text, list_at, mapping_at, mappings_at, text_at
from gateway.wire.message_identity import content_text

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

# The last version with generative AI in it; see `docs/monitoring.md`.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"

_EXPORTER_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_CALLS = frozenset(dialect.route for dialect in DIALECTS.values())

COST_NAMES = ("llm.cost.total", "gen_ai.usage.cost")  # of OpenInference, and as Langfuse reads it
_TABLE = read_toml(__package__, "otel.toml")
_PERSON = ("account_uuid", "user_id", "device_id")  # of Claude Code's JSON in metadata.user_id


class Telemetry:
    """Turns finished exchanges into spans."""

    def __init__(self, tracer: "Tracer", close: Callable[[], None]):
        self._tracer = tracer
        self.close = close  # export what is still queued; blocks

    def finished(self, exchange: Exchange, duration_s: float, trace_parent: str) -> None:
        """Record an exchange that has just ended, if it was a model call. `trace_parent`: the
        request's header of that name, or empty."""
        if exchange.route not in _CALLS or not exchange.request.model:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        end = time.time_ns()
        if trace_parent:
            carrier = {"traceparent": trace_parent}
        else:
            carrier = {}
        span = self._tracer.start_span(
            f"chat {exchange.request.model}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.CLIENT,
            start_time=end - int(duration_s * 1e9),
            attributes=_details(exchange) | exchange.texts,
        )
        if error := _error(exchange):
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=end)


def caller(body: Fields, identity: Identity, key: str) -> dict[str, str]:
    """`session.id` and `user.id` of a call, as far as the client names them: by an id of its own,
    and by a person or the name of its gateway key. Nothing that looks like a secret."""
    if identity.weak:
        session = None
    else:
        session = identity.value
    person = _person(mapping_at(body, "metadata").get("user_id"))
    users = (person, body.get("safety_identifier"), body.get("user"), key)
    found: dict[str, str] = {}
    for name, given in (("session.id", (session and identity.parent, session)), ("user.id", users)):
        for value in map(clean_id, given):
            if value is not None and not value.startswith("gw-") and not find_secrets(value):
                found.setdefault(name, value)
    return found


def _person(value: object) -> object:
    """The person named beside the session by Claude Code, in its JSON and in its earlier form."""
    if not isinstance(value, str) or not value.startswith("{"):
        if isinstance(value, str):
            return value.partition("_session_")[0]
        return None
    try:
        parsed = as_mapping(json.loads(value))
    except (ValueError, RecursionError):
        return None
    return next((parsed[name] for name in _PERSON if parsed.get(name)), None)


def answer_names(answer: Fields) -> FieldDict:
    """The attributes of an answer without its texts: model, id, and why it ended."""
    reasons = [text_at(choice, "finish_reason") for choice in mappings_at(answer, "choices")]
    found: FieldDict = {"gen_ai.response.finish_reasons": list(filter(None, reasons))}
    found |= {f"gen_ai.response.{name}": text_at(answer, name) for name in ("model", "id")}
    return {name: value for name, value in found.items() if value}


def _error(exchange: Exchange) -> str:
    response = exchange.response
    return response.error or (str(response.status) if response.status >= 400 else "")


def _details(exchange: Exchange) -> FieldDict:
    upstream = exchange.upstream
    provider = upstream.provider
    details = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _TABLE["providers"].get(provider, provider or "openai"),
        "gen_ai.request.model": upstream.model or exchange.request.model,
        "error.type": _error(exchange) or None,
        "gateway.overhead_ms": round(exchange.timing.own_s() * 1000, 3),
        "gateway.attempts": len(upstream.attempts),
        **{name: attrgetter(path)(exchange) for name, path in _TABLE["known"].items()},
        **{name: attrgetter(path)(exchange) or None for name, path in _TABLE["filled"].items()},
        **{name: exchange.notes.get(note) for name, note in _TABLE["notes"].items()},
    }
    return {name: value for name, value in details.items() if value is not None}


def open_telemetry(env: Texts, version: str) -> Telemetry | None:
    """Telemetry when the environment configures it, else None. Raises: ConfigError: it is
    configured, and the extra is not installed."""
    asked = [name for name in _EXPORTER_VARIABLES if env.get(name)]
    if not asked or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        return _with_exporters(env, version)
    except ImportError as exc:
        raise ConfigError(
            f"{asked[0]}: OpenTelemetry is not installed ({exc.name}); install the extra `otel`, "
            "or set OTEL_SDK_DISABLED=true"
        ) from exc


def _with_exporters(env: Texts, version: str) -> Telemetry:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = env.get("OTEL_SERVICE_NAME", "steering-gateway")
    resource = Resource.create({"service.name": name, "service.version": version})
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = traces.get_tracer("gateway", version, schema_url=SCHEMA_URL)
    return Telemetry(tracer, traces.shutdown)


_NEWEST = 20  # messages of one call; those before it are in the spans of earlier calls

Clean = Callable[[str], str]


def call_texts(
    history: Sequence[Any],
    completion: Fields | None,
    settings: OtelSettings,
    *,
    mask: bool,
) -> dict[str, str]:
    """The attributes: the messages since the model's last one, and its answer, each text cut to
    `otel.max_chars`, with `mask` without what looks like a secret. Empty when nothing can be read.
    """

    def clean(text: str) -> str:
        if mask:
            text = mask_secrets(text)
        if len(text) <= settings.max_chars:
            return text
        return text[: settings.max_chars] + "…"

    try:
        given = [_message(message, clean) for message in _newest(history)]
        answered = [_answer(choice, clean) for choice in list_at(completion or {}, "choices")]
    except (TypeError, AttributeError, LookupError, ValueError):
        return {}  # a client or an upstream may put anything anywhere
    found = {"openinference.span.kind": "LLM"}
    for side, messages in (("input", given), ("output", answered)):
        if messages:
            text = json.dumps(messages, ensure_ascii=False).encode("utf-8", "replace").decode()
            found |= {f"gen_ai.{side}.messages": text, f"{side}.value": text}
            found[f"{side}.mime_type"] = "application/json"
    return found


def _newest(history: Sequence[Any]) -> list[Any]:
    """The messages after the model's last one, at most `_NEWEST`; at the start the system prompt,
    too."""
    found: list[Any] = []
    for message in reversed(history):
        if as_mapping(message).get("role") == "assistant" or len(found) == _NEWEST:
            break
        found.append(message)
    return found[::-1]


def _message(message: Any, clean: Clean) -> FieldDict:
    values = as_mapping(message)
    role = as_text(values.get("role"), "user")
    text = clean(content_text(values.get("content")))
    if role == "tool":
        part = {"type": "tool_call_response", "id": values.get("tool_call_id"), "response": text}
        return {"role": role, "parts": [part]}
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _answer(choice: Any, clean: Clean) -> FieldDict:
    message = mapping_at(as_mapping(choice), "message")
    parts: list[FieldDict] = []
    if text := content_text(message.get("content")):
        parts.append({"type": "text", "content": clean(text)})
    for call in mappings_at(message, "tool_calls"):
        function = mapping_at(call, "function")
        name = text_at(function, "name")
        arguments = text_at(function, "arguments")
        part = {"type": "tool_call", "id": call.get("id"), "name": name}
        parts.append({**part, "arguments": clean(arguments)})
    reason = as_text(as_mapping(choice).get("finish_reason"), "stop")
    return {"role": "assistant", "parts": parts, "finish_reason": reason}
