"""Turns LiteLLM's chunks into those of OpenAI's API. Pure.

One id, model and creation time for the whole stream; the role once; tool calls repaired; signed
thinking whole instead of in pieces; the finish reason last, once, and only if the provider gave
one; usage in a separate chunk, for a client that asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.upstream.litellm_lane.completions import (
    CUT,
    HEAD_KEYS,
    SERVER_CALL,
    Json,
    clean_usage,
    drop_doubled_fields,
    finish_of,
)
from gateway.wire import toolcalls


@dataclass(slots=True)
class _Choice:
    calls: toolcalls.ToolCallStream
    finish_reason: str | None = None
    thinking: str = ""
    thinking_blocks: int = 0
    reasoned: bool = False
    server_slots: set[Any] = field(default_factory=set)


class ChunkStream:
    """Chunks in, OpenAI's chunks out, for one streamed answer."""

    def __init__(self, *, id: str, created: int, model: str) -> None:
        self._head: Json = {"id": id, "created": created, "model": model}
        self._started = False
        self._choices: dict[int, _Choice] = {}
        self._extras: Json = {}
        self.usage: Json | None = None

    @property
    def complete(self) -> bool:
        """Whether the provider has given every choice a finish reason."""
        return bool(self._choices) and all(
            choice.finish_reason is not None for choice in self._choices.values()
        )

    def push(self, chunk: Mapping[str, Any]) -> list[Json]:
        """The chunks to send for one received; may be empty."""
        if not self._started:
            self._start(chunk)
        usage = chunk.get("usage")
        if isinstance(usage, Mapping) and any(usage.values()):
            reasoned = any(choice.reasoned for choice in self._choices.values())
            self.usage = clean_usage(usage, reasoned=reasoned)
        extras = {k: v for k, v in chunk.items() if k not in HEAD_KEYS and v}
        out: list[Json] = []
        for choice in chunk.get("choices") or ():
            out += self._push_choice(choice, extras)
        return out

    def end(self, reason: str | None) -> None:
        """The finish reason of an adapter that keeps it apart from its chunks, if it has one."""
        for choice in self._choices.values():
            choice.finish_reason = choice.finish_reason or finish_of(reason)

    def finish(self, *, include_usage: bool) -> list[Json]:
        """The last chunks: what was held back, one finish reason per choice, usage if wanted."""
        out: list[Json] = []
        for index, choice in sorted(self._choices.items()):
            cut = choice.finish_reason in CUT
            rest = choice.calls.finish(cut=cut)
            if rest:
                out.append(self._chunk([_one(index, {"tool_calls": rest})]))
            reason = toolcalls.finish_reason(choice.finish_reason, choice.calls.announced)
            out.append(self._chunk([_one(index, {}, finish_reason=reason)]))
        if include_usage and self.usage is not None:
            out.append({**self._chunk([]), "usage": self.usage})
        return out

    def _start(self, chunk: Mapping[str, Any]) -> None:
        self._started = True
        for key in ("id", "created", "model"):
            if chunk.get(key):
                self._head[key] = chunk[key]

    def _chunk(self, choices: list[Json]) -> Json:
        head = self._head
        return {
            "id": head["id"],
            "object": "chat.completion.chunk",
            "created": head["created"],
            "model": head["model"],
            "choices": choices,
        }

    def _push_choice(self, choice: Mapping[str, Any], extras: Json) -> list[Json]:
        index = choice.get("index") or 0
        state = self._choices.get(index)
        delta = _clean_delta(choice.get("delta") or {})
        if state is None:
            state = self._choices[index] = _Choice(toolcalls.ToolCallStream(self._new_id))
            delta = {"role": "assistant", "content": "", **delta}
        if choice.get("finish_reason"):
            state.finish_reason = finish_of(choice["finish_reason"])
        state.reasoned = state.reasoned or "reasoning_content" in delta
        self._repair_calls(state, delta)
        _join_thinking(state, delta)
        logprobs = choice.get("logprobs")
        if not delta and not logprobs and (not extras or extras == self._extras):
            return []
        self._extras = extras
        out = {**self._chunk([_one(index, delta)]), **extras}
        if logprobs:
            out["choices"][0]["logprobs"] = logprobs
        return [out]

    def _new_id(self, index: int) -> str:
        return f"call_{str(self._head['id']).removeprefix('chatcmpl-')}_{index}"

    def _repair_calls(self, state: _Choice, delta: Json) -> None:
        calls = delta.pop("tool_calls", None)
        if not calls:
            return
        sent = state.calls.push([call for call in calls if not _is_server(call, state)])
        if sent:
            delta["tool_calls"] = sent


def _one(index: int, delta: Json, *, finish_reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "finish_reason": finish_reason}


def _clean_delta(delta: Mapping[str, Any]) -> Json:
    out = {
        key: value
        for key, value in delta.items()
        if key != "role" and value is not None and value not in ("", [], {})
    }
    drop_doubled_fields(out)
    return out


def _is_server(call: Any, state: _Choice) -> bool:
    """Whether a delta belongs to a tool that ran at the provider."""
    slot, id = call.get("index"), call.get("id")
    if id and str(id).startswith(SERVER_CALL):
        state.server_slots.add(slot)
    elif id:
        state.server_slots.discard(slot)
    return slot in state.server_slots


def _join_thinking(state: _Choice, delta: Json) -> None:
    """Hold thinking until its signature comes, then send the complete block.

    A block is of use only when echoed complete, and the official clients cannot join list items
    without an index; the text itself streams on as `reasoning_content`.
    """
    whole: list[Json] = []
    for block in delta.pop("thinking_blocks", ()):
        if block.get("type") == "thinking":
            state.thinking += block.get("thinking") or ""
            if not block.get("signature"):
                continue
            block, state.thinking = {**block, "thinking": state.thinking}, ""
        whole.append({"index": state.thinking_blocks + len(whole), **block})
    if whole:
        state.thinking_blocks += len(whole)
        delta["thinking_blocks"] = whole
