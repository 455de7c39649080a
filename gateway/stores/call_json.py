"""The record of a call as JSON, and the memory that it takes.

The JSON is written by Python's own module: orjson refuses unpaired surrogates and integers beyond
64 bits and turns NaN into null; all of these may come from a client."""

import json

import msgspec

from gateway.stores.records import CallRecord

FIXED_BYTES = 4500
"""Memory of one record without its texts and state, indexes included: 4,470 bytes for a call with
two hashes, a run and a scored step, measured with tracemalloc."""


def encoded(record: CallRecord) -> bytes:
    """The record as JSON."""
    values = msgspec.to_builtins(record, enc_hook=dict)  # for mappings that are no dict
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def decoded(content: bytes) -> CallRecord:
    """The record that `encoded` was given. Raises: ValueError when it is none."""
    values = json.loads(content.decode("utf-8", "surrogatepass"))
    try:
        return msgspec.convert(values, CallRecord)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"not a call record: {error}") from error


def size_of(record: CallRecord) -> int:
    """About how many bytes of memory a record takes."""
    size = FIXED_BYTES + len(record.conversation.state)
    size += sum([len(item.content) for item in record.items])
    size += sum([len(row.text) for row in record.injections])
    for step in record.steps:
        content = step.content
        if content is None:
            continue
        size += len(content.thought) + len(content.reasoning) + len(content.reply_text)
        size += sum([len(message.text) for message in content.messages])
        for action in (*content.actions, *content.reply_actions):
            size += len(action.arguments) + len(action.observation or "")
    return size
