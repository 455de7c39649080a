"""Items of the Responses API as calls, results and reasoning; reading never raises.

Source: OpenAI API reference, Responses, input and output items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.steering.transcript.content import (
    RequestedCall,
    Result,
    image_sum,
    images_sum,
    json_text,
    read_content,
    without_guidance,
)
from gateway.wire.coerce import as_text

_ARGUMENT_FIELDS = ("arguments", "input", "action", "operation", "code", "queries")
_RESULT_FIELDS = ("output", "error", "outputs", "results")
_FAILED = ("failed", "incomplete")
CLIENT_CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"}
    | {"computer_call"}
)
"""Calls that the client carries out; any other `..._call` has run at the provider."""


def item_call(item: Mapping[str, Any]) -> RequestedCall | None:
    """The call in an item, or None when it is none; a built-in tool is named by its type.

    The result of a call that ran at the provider is in the call itself, if anywhere.
    """
    kind = as_text(item.get("type"), "")
    if not kind.endswith("_call"):
        return None
    given = next((item[key] for key in _ARGUMENT_FIELDS if item.get(key) is not None), None)
    shown = next((item[key] for key in _RESULT_FIELDS if item.get(key)), "")
    return RequestedCall(
        id=as_text(item.get("call_id"), "") or as_text(item.get("id"), ""),
        name=as_text(item.get("name"), "") or kind.removesuffix("_call"),
        arguments=json_text(given),
        observation=None if kind in CLIENT_CALLS else without_guidance(_output_text(shown)),
    )


def item_result(item: Mapping[str, Any]) -> Result | None:
    """The result in an item, or None when it is none."""
    if not as_text(item.get("type"), "").endswith("_output"):
        return None
    output = item.get("output")
    return Result(
        text=without_guidance(_output_text(output)),
        image=image_sum(output) if isinstance(output, dict) else images_sum(output),
        id=as_text(item.get("call_id"), ""),
        is_error=item.get("is_error") is True or item.get("status") in _FAILED,
    )


def item_reasoning(item: Mapping[str, Any]) -> str:
    """Text of a reasoning item: its content, else its summary; encrypted reasoning is empty."""
    if item.get("type") != "reasoning":
        return ""
    for key in ("content", "summary"):
        parts = item.get(key)
        shown = [as_text(p.get("text"), "") for p in parts if isinstance(p, dict)] if parts else []
        if any(shown):
            return "\n".join(shown)
    return ""


def _output_text(value: object) -> str:
    """The text of an output: as it is, of its parts, or what a shell printed, one after another."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return json_text(value)
    printed = []
    for part in value if isinstance(value, list) else ():
        if isinstance(part, dict):
            shown = [as_text(part.get(key), "") for key in ("stdout", "stderr", "logs")]
            printed.append("\n".join(filter(None, shown)))
    return "".join(printed) or read_content(value).text
