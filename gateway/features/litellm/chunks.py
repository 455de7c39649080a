"""Turns LiteLLM's completions and chunks into those of OpenAI's API. Pure.

A stream has one id, model and creation time; the role once; tool calls repaired; signed thinking
whole instead of in pieces; the finish reason last, once, and only if the provider gave one; usage
in a separate chunk, for a client that asked."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.values import FieldDict, Fields
from gateway.wire import toolcalls

# What providers call the end of a turn, where LiteLLM lets it through untranslated.
# Source: stop reasons of Anthropic Messages, Bedrock Converse, Cohere Chat, Gemini.
_FINISH = {
    **dict.fromkeys(("end_turn", "stop_sequence", "eos", "complete"), "stop"),
    **dict.fromkeys(("tool_use", "tool_call"), "tool_calls"),
    **dict.fromkeys(("max_tokens", "model_length"), "length"),
    **dict.fromkeys(("refusal", "safety"), "content_filter"),
}
CUT = frozenset({"length", "content_filter"})
# Tools that ran at the provider: LiteLLM lists them as calls, and an agent would try to run them.
_SERVER_CALL = "srvtoolu_"
_HEAD_KEYS = frozenset({"id", "object", "created", "model", "choices", "usage", "stream_options"})


def completion(answer: Fields, *, model: str) -> FieldDict:
    """LiteLLM's complete answer as OpenAI's API would give it."""
    out = {key: value for key, value in answer.items() if key in _HEAD_KEYS or value}
    out.pop("stream_options", None)
    out["object"] = "chat.completion"
    out["model"] = out.get("model") or model
    out["choices"] = [_clean_choice(choice, str(out.get("id"))) for choice in out["choices"]]
    if isinstance(out.get("usage"), Mapping):
        reasoned = any("reasoning_content" in c["message"] for c in out["choices"])
        out["usage"] = clean_usage(out["usage"], reasoned=reasoned)
    return out


def as_chunk(answer: Fields) -> FieldDict:
    """A complete answer as the single chunk of a stream."""
    choices = []
    for choice in answer["choices"]:
        delta = choice.get("message") or choice.get("delta") or {}
        for slot, call in enumerate(delta.get("tool_calls") or ()):
            call["index"] = slot
        choices.append({**{k: v for k, v in choice.items() if k != "message"}, "delta": delta})
    return {**answer, "object": "chat.completion.chunk", "choices": choices}


def from_generic(chunk: Fields, *, finished: bool) -> FieldDict | None:
    """LiteLLM's `GenericStreamingChunk` as a chunk; None when there is nothing in it. `finished`: a
    finish reason is known; then the one of an empty end marker is not heeded."""
    extras = chunk.get("provider_specific_fields") or {}
    text = chunk.get("text")
    call = chunk.get("tool_use")
    usage = chunk.get("usage")
    reason = chunk.get("finish_reason") or None
    if reason and finished and not (text or call):
        reason = None
    if not (text or call or usage or reason or extras):
        return None
    delta = {"content": text, "tool_calls": [call] if call else None, **extras}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"choices": [choice], "usage": usage}


def clean_usage(usage: Fields, *, reasoned: bool) -> FieldDict:
    """Usage without nulls, and without the zero LiteLLM puts for reasoning nobody counted."""
    out: FieldDict = without_nulls(usage)
    details = out.get("completion_tokens_details")
    if reasoned and details and details.get("reasoning_tokens") == 0:
        details.pop("reasoning_tokens")
        details.pop("text_tokens", None)
        if not details:
            del out["completion_tokens_details"]
    return out


def without_nulls(value: Any) -> Any:
    """A JSON value without the null members of its objects."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def finish_of(reason: Any) -> str | None:
    """The finish reason in OpenAI's words; None for none."""
    if reason:
        return _FINISH.get(str(reason).lower(), str(reason))
    return None


def drop_doubled_fields(message: FieldDict) -> None:
    """Remove from the provider's fields what the message has, as LiteLLM's thinking blocks."""
    fields = message.get("provider_specific_fields")
    if isinstance(fields, Mapping):
        kept = {k: v for k, v in fields.items() if k not in message and v is not None}
        message["provider_specific_fields"] = kept
        if not kept:
            del message["provider_specific_fields"]


def _clean_choice(choice: Fields, id: str) -> FieldDict:
    message = {key: value for key, value in choice["message"].items() if value or key == "content"}
    drop_doubled_fields(message)
    if "tool_calls" in message:
        calls = message["tool_calls"]
        message["tool_calls"] = [c for c in calls if not _is_of_server(c.get("id"))]
    reason = finish_of(choice.get("finish_reason"))
    stem = id.removeprefix("chatcmpl-")
    count = toolcalls.repair_message(
        message, lambda index: f"call_{stem}_{index}", cut=reason in CUT
    )
    apart = ("index", "message", "finish_reason")
    return {
        "index": choice.get("index") or 0,
        "message": {"role": "assistant", "content": None, **message},
        **{key: value for key, value in choice.items() if key not in apart and value},
        "finish_reason": toolcalls.finish_reason(reason, count),
    }


def _is_of_server(id: Any) -> bool:
    return str(id or "").startswith(_SERVER_CALL)


class _Choice(Struct):
    calls: toolcalls.ToolCallStream  # tool calls, joined from their parts
    finish_reason: str | None = None  # None before the end
    thinking: str = ""  # text of the block of reasoning that is open
    thinking_blocks: int = 0  # blocks of reasoning so far
    reasoned: bool = False  # a part with reasoning came
    # indexes of calls that the provider makes itself
    server_slots: set[Any] = set()


class ChunkStream:
    """Chunks in, OpenAI's chunks out, for one streamed answer."""

    def __init__(self, *, id: str, created: int, model: str):
        kind = "chat.completion.chunk"
        self._head: FieldDict = {"id": id, "object": kind, "created": created, "model": model}
        self._started = False
        self._choices: dict[int, _Choice] = {}
        self._extras: FieldDict = {}
        self.usage: FieldDict | None = None

    @property
    def complete(self) -> bool:
        """Whether the provider has given every choice a finish reason."""
        return bool(self._choices) and all(
            choice.finish_reason is not None for choice in self._choices.values()
        )

    def push(self, chunk: Fields) -> list[FieldDict]:
        """The chunks to send for one received; may be empty."""
        if not self._started:
            self._started = True
            known = ("id", "created", "model")
            self._head.update({key: chunk[key] for key in known if chunk.get(key)})
        usage = chunk.get("usage")
        if isinstance(usage, Mapping) and any(usage.values()):
            reasoned = any(choice.reasoned for choice in self._choices.values())
            self.usage = clean_usage(usage, reasoned=reasoned)
        extras = {k: v for k, v in chunk.items() if k not in _HEAD_KEYS and v}
        out = []
        for choice in chunk.get("choices") or ():
            out += self._push_choice(choice, extras)
        return out

    def end(self, reason: str | None) -> None:
        """The finish reason of an adapter that keeps it apart from its chunks, if it has one."""
        for choice in self._choices.values():
            choice.finish_reason = choice.finish_reason or finish_of(reason)

    def finish(self, *, include_usage: bool) -> list[FieldDict]:
        """The last chunks: what was held back, one finish reason per choice, usage if wanted."""
        out = []
        for index, choice in sorted(self._choices.items()):
            if rest := choice.calls.finish(cut=choice.finish_reason in CUT):
                out.append(self._chunk(index, {"tool_calls": rest}))
            reason = toolcalls.finish_reason(choice.finish_reason, choice.calls.announced)
            out.append(self._chunk(index, {}, reason))
        if include_usage and self.usage is not None:
            out.append({**self._head, "choices": [], "usage": self.usage})
        return out

    def _chunk(self, index: int, delta: FieldDict, reason: str | None = None) -> FieldDict:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        return {**self._head, "choices": [choice]}

    def _push_choice(self, choice: Fields, extras: FieldDict) -> list[FieldDict]:
        index = choice.get("index") or 0
        state = self._choices.get(index)
        given = choice.get("delta") or {}
        delta = {k: v for k, v in given.items() if k != "role" and v not in (None, "", [], {})}
        drop_doubled_fields(delta)
        if state is None:
            state = self._choices[index] = _Choice(toolcalls.ToolCallStream(self._new_id))
            delta = {"role": "assistant", "content": "", **delta}
        if choice.get("finish_reason"):
            state.finish_reason = finish_of(choice["finish_reason"])
        state.reasoned = state.reasoned or "reasoning_content" in delta
        own = [call for call in delta.pop("tool_calls", ()) if not _is_server(call, state)]
        if own and (calls := state.calls.push(own)):
            delta["tool_calls"] = calls
        _join_thinking(state, delta)
        logprobs = choice.get("logprobs")
        if not delta and not logprobs and (not extras or extras == self._extras):
            return []
        self._extras = extras
        out = {**self._chunk(index, delta), **extras}
        if logprobs:
            out["choices"][0]["logprobs"] = logprobs
        return [out]

    def _new_id(self, index: int) -> str:
        return f"call_{str(self._head['id']).removeprefix('chatcmpl-')}_{index}"


def _is_server(call: Any, state: _Choice) -> bool:
    """Whether a delta belongs to a tool that ran at the provider."""
    slot = call.get("index")
    id = call.get("id")
    if _is_of_server(id):
        state.server_slots.add(slot)
    elif id:
        state.server_slots.discard(slot)
    return slot in state.server_slots


def _join_thinking(state: _Choice, delta: FieldDict) -> None:
    """Hold thinking until its signature comes, then send the block: only a complete one can be
    echoed, and clients cannot join list items without an index. The text is streamed meanwhile."""
    whole: list[FieldDict] = []
    for block in delta.pop("thinking_blocks", ()):
        if block.get("type") == "thinking":
            state.thinking += block.get("thinking") or ""
            if not block.get("signature"):
                continue
            block = {**block, "thinking": state.thinking}
            state.thinking = ""
        whole.append({"index": state.thinking_blocks + len(whole), **block})
    if whole:
        state.thinking_blocks += len(whole)
        delta["thinking_blocks"] = whole
