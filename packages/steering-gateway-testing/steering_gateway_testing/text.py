"""Text for replies: how it is cut into deltas, and what the model says when nobody scripted it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import orjson

from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.values import Reply

_WORD = re.compile(r"\s*\S+\s*|\s+")
_MAX_DEPTH = 12


def pieces(text: str, count: int | None) -> list[str]:
    """`text` cut into `count` pieces of about equal length (at most one per character).

    None cuts after each word. Empty text gives no pieces; joined, the pieces are the text.
    """
    if not text:
        return []
    if count is None:
        return _WORD.findall(text)
    count = max(1, min(count, len(text)))
    edges = [len(text) * i // count for i in range(count + 1)]
    return [text[a:b] for a, b in pairwise(edges)]


def echo(request: ReceivedRequest) -> Reply:
    """The default reply: the last user text sent back, or JSON where a schema is asked for."""
    schema = _wanted_schema(request.fields)
    if schema is not None:
        value = sample(schema, schema)
        return Reply(orjson.dumps(value).decode())
    return Reply(f"You said: {last_user_text(request)}")


def last_user_text(request: ReceivedRequest) -> str:
    """Text of the newest user message, text parts joined; empty when there is none."""
    for message in reversed(request.messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return _text(message.get("content"))
    prompt = request.fields.get("prompt", "")
    return prompt if isinstance(prompt, str) else ""


def sample(schema: Any, root: Any, depth: int = 0) -> Any:
    """A small value that fits a JSON schema made of the keywords structured output allows."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return sample(_resolve(root, reference), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    for keyword in ("enum", "anyOf", "oneOf", "allOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and options:
            return options[0] if keyword == "enum" else sample(options[0], root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {key: sample(value, root, depth + 1) for key, value in properties.items()}
    if kind == "array":
        return [sample(schema.get("items"), root, depth + 1)]
    plain = {"string": "text", "integer": 1, "number": 1.5, "boolean": True}
    return plain.get(kind) if isinstance(kind, str) else None


def _wanted_schema(fields: Mapping[str, Any]) -> Any:
    wanted = fields.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_object":
        return {"type": "object"}
    if isinstance(wanted, Mapping) and isinstance(inner := wanted.get("json_schema"), Mapping):
        return inner.get("schema")
    text = fields.get("text")
    wanted = text.get("format") if isinstance(text, Mapping) else None
    return wanted.get("schema") if isinstance(wanted, Mapping) else None


def _resolve(root: Any, reference: str) -> Any:
    value = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return " ".join(text for text in texts if isinstance(text, str))
