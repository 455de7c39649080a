"""The texts of a call as attributes of its span, where `otel.content` asks for them.

Two spellings of the same: the `gen_ai.*` conventions' messages, and OpenInference's `input.value`
and `output.value`, because some receivers show only the one or the other.

Source: OpenTelemetry semantic conventions for generative AI, `gen_ai.input.messages` and
`gen_ai.output.messages`, which spans may hold as JSON; OpenInference semantic conventions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.config.observability import OtelSettings
from gateway.text.secrets import mask_secrets
from gateway.wire.coerce import as_list, as_mapping, as_text
from gateway.wire.messages import content_text

_NEWEST = 20  # messages of one call; those before it are in the spans of earlier calls

Clean = Callable[[str], str]


def call_texts(
    history: Sequence[Any],
    completion: Mapping[str, Any] | None,
    settings: OtelSettings,
    *,
    mask: bool,
) -> dict[str, str]:
    """The attributes: the messages since the model's last one, and its answer, each text cut to
    `otel.max_chars`, with `mask` without what looks like a secret. Empty when nothing can be read.
    """

    def clean(text: str) -> str:
        text = mask_secrets(text) if mask else text
        return text if len(text) <= settings.max_chars else text[: settings.max_chars] + "…"

    try:
        given = [_message(message, clean) for message in _newest(history)]
        answered = [_answer(choice, clean) for choice in as_list((completion or {}).get("choices"))]
    except (TypeError, AttributeError, LookupError, ValueError):
        return {}  # a client or an upstream may put anything anywhere
    found = {"openinference.span.kind": "LLM"}
    for name, other, messages in (
        ("gen_ai.input.messages", "input", given),
        ("gen_ai.output.messages", "output", answered),
    ):
        if messages:
            text = json.dumps(messages, ensure_ascii=False)
            text = text.encode("utf-8", "replace").decode()
            found |= {name: text, f"{other}.value": text, f"{other}.mime_type": "application/json"}
    return found


def _newest(history: Sequence[Any]) -> list[Any]:
    """The messages after the model's last one, at most `_NEWEST`; at the start the system prompt,
    too."""
    found: list[Any] = []
    for at in range(len(history) - 1, -1, -1):
        message = history[at]
        if as_mapping(message).get("role") == "assistant" or len(found) == _NEWEST:
            break
        found.append(message)
    return found[::-1]


def _message(message: Any, clean: Clean) -> dict[str, Any]:
    values = as_mapping(message)
    role, text = as_text(values.get("role"), "user"), clean(content_text(values.get("content")))
    if role == "tool":
        part = {"type": "tool_call_response", "id": values.get("tool_call_id"), "response": text}
        return {"role": role, "parts": [part]}
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _answer(choice: Any, clean: Clean) -> dict[str, Any]:
    message = as_mapping(as_mapping(choice).get("message"))
    parts: list[dict[str, Any]] = []
    if text := content_text(message.get("content")):
        parts.append({"type": "text", "content": clean(text)})
    for call in as_list(message.get("tool_calls")):
        function = as_mapping(as_mapping(call).get("function"))
        parts.append(
            {
                "type": "tool_call",
                "id": as_mapping(call).get("id"),
                "name": as_text(function.get("name"), ""),
                "arguments": clean(as_text(function.get("arguments"), "")),
            }
        )
    reason = as_text(as_mapping(choice).get("finish_reason"), "stop")
    return {"role": "assistant", "parts": parts, "finish_reason": reason}
