"""The record of a call as JSON.

The JSON is written by Python's own module: orjson refuses unpaired surrogates and integers beyond
64 bits and turns NaN into null; all of these may come from a client."""

import json

import msgspec

from gateway.stores.records import CallRecord


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
