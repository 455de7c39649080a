"""Puts the events of a streamed Anthropic message together into one message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Type of a delta -> the field that it contains; a call's input is put together from JSON text."""


class BlockAssembler:
    """Adds event after event; malformed ones are skipped, never raised."""

    __slots__ = ("_blocks", "_head", "_parts", "usage")

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._parts: dict[tuple[int, str], list[str]] = {}
        self.usage: dict[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """One parsed event."""
        match event.get("type"):
            case "message_start":
                message = event.get("message")
                self._head = dict(message) if isinstance(message, dict) else {}
                self._count(self._head.get("usage"))
            case "content_block_start":
                block, index = event.get("content_block"), event.get("index")
                if isinstance(block, dict) and isinstance(index, int):
                    self._blocks[index] = dict(block)
            case "content_block_delta":
                self._add_delta(event.get("index"), event.get("delta"))
            case "message_delta":
                delta = event.get("delta")
                if isinstance(delta, dict):
                    self._head.update(delta)
                self._count(event.get("usage"))

    def message(self) -> dict[str, Any] | None:
        """The complete message; None when none began."""
        if not self._head:
            return None
        content = [self._closed(index) for index in sorted(self._blocks)]
        return {**self._head, "content": content, "usage": self.usage}

    def _count(self, usage: object) -> None:
        # The counts of the last event are totals; it leaves out what does not change.
        if isinstance(usage, dict):
            known = {key: value for key, value in usage.items() if value is not None}
            self.usage = {**(self.usage or {}), **known}

    def _add_delta(self, index: object, delta: object) -> None:
        if not isinstance(index, int) or not isinstance(delta, dict):
            return
        field = _DELTAS.get(str(delta.get("type")))
        piece = delta.get(field) if field else None
        if field and isinstance(piece, str):
            self._parts.setdefault((index, field), []).append(piece)

    def _closed(self, index: int) -> dict[str, Any]:
        block = self._blocks[index]
        for field in ("text", "thinking", "signature"):
            parts = self._parts.get((index, field))
            if parts:
                block[field] = (block.get(field) or "") + "".join(parts)
        parts = self._parts.get((index, "partial_json"))
        if parts:
            block["input"] = _parsed("".join(parts))
        return block


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text  # cut by a limit, the part that came; or nested too deeply
