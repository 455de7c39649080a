"""The calls of one group as the parameters of one statement: a JSON array of rows for each table.

Text in one piece, because the driver asks of every element of an array whether it is an array
itself: with an array for each of 130 columns a call of the gateway took 2.5 million instructions
more, of 11.3.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import orjson
from msgspec import Struct, field

from gateway.stores import codec, usage
from gateway.stores.postgres.text import stored_json, stored_text
from gateway.stores.records import CallRecord, ConversationRecord, InjectionRow, RunUpdate, StepRow
from gateway.stores.sql.states import root_key
from gateway.stores.sql.usage import usage_rows
from gateway.stores.totals import RunTotals

Row = tuple[Any, ...]

_HEAD = {"root": "int8", "digest": "bytea", "kind": "text", "position": "int8", "step": "int8"}
_ITEM = {"id": "text", "content": "bytea"}
_TYPES = {
    **dict.fromkeys(("sequence", "step_index", "ordinal", "message_position"), "int8"),
    **dict.fromkeys(("version", "message_count"), "int8"),
    **dict.fromkeys(("started_at", "updated_at", "ended_at", "created_at", "at"), "float8"),
    **dict.fromkeys(("difficulty", "composite", "similarity", "share"), "float8"),
    **dict.fromkeys(("applied", "has_tools", "given"), "bool"),
    **dict.fromkeys(("served_head", "signature", "state"), "bytea"),
}
COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
_FLOAT_SUMS = (*COSTS, "composite_peak", "composite_sum", "latency_s", "overhead_ms")
SUMS = {name: "float8" if name in _FLOAT_SUMS else "int8" for name in codec.SUM_COLUMNS}


def _typed(names: Sequence[str], **other: str) -> dict[str, str]:
    return {name: other.get(name) or _TYPES.get(name, "text") for name in names}


_SHORT = tuple(name for name in codec.CONVERSATION_COLUMNS if name != "state")
# The state is long: Base64 costs a fraction of what hexadecimal digits do.
CONVERSATION = _typed((*_SHORT, "state"), state="text")
UPDATE = _typed(codec.UPDATE_COLUMNS, state="text")
_RUN = {"id": "text", **UPDATE, **SUMS, "counts": "text", "bytes": "int8"}
STEP = _typed(codec.STEP_COLUMNS, state="text")
INJECTION = _typed(codec.INJECTION_COLUMNS)
DECISION = _typed(codec.DECISION_COLUMNS, state="text")
USAGE = {
    "hour": "int8",
    "agent": "text",
    "model": "text",
    **dict.fromkeys(usage.SUMS, "int8"),
    "cost_usd": "float8",
    **dict.fromkeys(usage.AMOUNTS, "float8"),
}

TABLES: Mapping[str, Mapping[str, str]] = {
    "c": {"n": "int8", **CONVERSATION},
    "h": {"n": "int8", **_HEAD},
    "i": {"n": "int8", **_ITEM},
    "r": {"m": "int8", "n": "int8", **_RUN},
    "s": {"m": "int8", **STEP},
    "g": {"m": "int8", **INJECTION},
    "d": {"n": "int8", **DECISION},
    "u": {"m": "int8", **USAGE},
}
"""The columns of a group's tables and their types, in the order of the parameters: conversations,
heads, items, runs, steps, injections (guidance), decisions about lessons, usage. `n` and `m`: the
number of the row's conversation and run in the group, from 1."""

_NAMES = {name: tuple(columns) for name, columns in TABLES.items()}
_JSON = ("readings", "call", "content")
_NO_TOTALS = RunTotals()
_conversation: Callable[[ConversationRecord], Row] = attrgetter(*_SHORT)


class Prepared(Struct, frozen=True, kw_only=True):
    """One call as rows. Numbers of runs count within the call, from 0.

    `certain`: whether all of it is new by its form alone: no step or guidance occurs twice.
    """

    call: CallRecord
    conversation: Row
    heads: Sequence[Row]
    items: Sequence[Row]
    runs: Sequence[Row]
    steps: Sequence[tuple[int, Row]]
    injections: Sequence[tuple[int, Row]]
    decisions: Sequence[Row]
    usage: Sequence[tuple[int, Row]]
    certain: bool


class Delta(Struct, frozen=True, kw_only=True):
    """Additions of a call to one run: steps and guidance that are not stored yet, and totals.

    `called`: the steps whose calls are to be counted; `late`: stored steps that get their scores.
    """

    steps: Sequence[StepRow] = ()
    called: Sequence[StepRow] = ()
    late: Sequence[StepRow] = ()
    injections: Sequence[InjectionRow] = ()
    totals: RunTotals = field(default_factory=RunTotals)


def everything(call: CallRecord, run: RunUpdate) -> Delta:
    """All that the call says of a run, for one of which nothing is stored yet."""
    steps: Sequence[StepRow] = call.steps
    injections: Sequence[InjectionRow] = call.injections
    if len(call.runs) > 1:
        steps = [step for step in steps if step.run_id == run.id]
        injections = [row for row in injections if row.run_id == run.id]
    given = [row.source for row in injections if row.applied]
    totals = _NO_TOTALS.including(
        steps,
        [step.call for step in steps if step.call],
        retries=0,
        injections=len(given),
        sources=given,
    )
    called = [step for step in steps if step.call]
    return Delta(steps=steps, called=called, injections=injections, totals=totals)


def prepare(
    call: CallRecord,
    delta_of: Callable[[CallRecord, RunUpdate], Delta] = everything,
    *,
    careful: bool = False,
) -> Prepared:
    """The rows of a call. `careful`: its texts contain what the database does not take as it is.

    Raises: UnicodeEncodeError, orjson.JSONEncodeError for texts and numbers that JSON cannot write.
    """
    record = call.conversation
    deltas = [delta_of(call, run) for run in call.runs]
    rows = [[codec.step_row(step) for step in d.steps] for d in deltas]
    steps = [(m, row) for m, some in enumerate(rows) for row in some]
    injected = [(m, codec.injection_row(row)) for m, d in enumerate(deltas) for row in d.injections]
    heads = [(root_key(h.root), h.digest, h.kind, h.position, h.step) for h in call.heads]
    prepared = Prepared(
        call=call,
        conversation=(*_conversation(record), b64encode(record.state).decode()),
        heads=heads,
        items=[(item.id, item.content) for item in call.items],
        runs=[_run_row(*each, careful) for each in zip(call.runs, deltas, rows, strict=True)],
        steps=steps,
        injections=injected,
        decisions=[codec.decision_row(row) for row in call.decisions],
        usage=[
            (m, row)
            for m, d in enumerate(deltas)
            for row in usage_rows(call.runs[m], (*d.steps, *d.late), d.called)
        ],
        certain=(len(steps) < 2 or _all_differ([(m, row[0]) for m, row in steps]))
        and (len(injected) < 2 or _all_differ([(m, row[0], row[1]) for m, row in injected])),
    )
    return _with_stored_texts(prepared) if careful else prepared


def parameters(group: Sequence[Prepared]) -> list[bytes]:
    """The rows of each of TABLES, as JSON in UTF-8.

    Raises: orjson.JSONEncodeError for texts that JSON cannot write.
    """
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for n, each in enumerate(group, start=1):
        first_run = len(tables["r"]) + 1
        _add(tables, "c", [(n, *each.conversation)])
        _add(tables, "h", [(n, *row) for row in each.heads])
        _add(tables, "r", [(first_run + m, n, *row) for m, row in enumerate(each.runs)])
        _add(tables, "s", [(first_run + m, *row) for m, row in each.steps])
        _add(tables, "u", [(first_run + m, *row) for m, row in each.usage])
        if each.items:
            _add(tables, "i", [(n, *row) for row in each.items])
        if each.injections:
            _add(tables, "g", [(first_run + m, *row) for m, row in each.injections])
        if each.decisions:
            _add(tables, "d", [(n, *row) for row in each.decisions])
    return [orjson.dumps(rows, default=_bytea) if rows else b"[]" for rows in tables.values()]


def _add(tables: Mapping[str, list[dict[str, Any]]], name: str, rows: list[Row]) -> None:
    """Add rows by the names of their columns."""
    names = _NAMES[name]
    tables[name] += [dict(zip(names, row, strict=True)) for row in rows]


def _bytea(value: Any) -> str:
    """Bytes as the database reads them."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError(f"{type(value).__name__} has no place in a row")


def _run_row(run: RunUpdate, delta: Delta, steps: Sequence[Row], careful: bool) -> Row:
    *sums, counts = codec.totals_row(delta.totals)
    *about, tags = codec.update_row(run)
    if careful:
        counts, tags = stored_json(counts), stored_json(tags)
    return (run.id, *about, tags, *sums, counts, _bytes_of(steps, delta.injections))


def _usage(run: RunUpdate, delta: Delta) -> Iterator[Row]:
    return usage_rows(run, (*delta.steps, *delta.late), delta.called)


def _bytes_of(steps: Sequence[Row], injections: Sequence[InjectionRow]) -> int:
    """About how much room the rows of one call take, for the limit of the log's size."""
    texts = [text for row in steps for text in row[-len(_JSON) :] if text]
    return sum(map(len, texts)) + sum([len(row.text) for row in injections])


def _with_stored_texts(prepared: Prepared) -> Prepared:
    def texts(row: Row) -> Row:
        return tuple(stored_text(v) if isinstance(v, str) else v for v in row)

    def but_json(row: Row) -> Row:  # the last three columns of a step
        return (*texts(row[: -len(_JSON)]), *row[-len(_JSON) :])

    def run(row: Row) -> Row:
        return (*texts(row[:-2]), *row[-2:])

    return Prepared(
        call=prepared.call,
        conversation=texts(prepared.conversation),
        heads=list(map(texts, prepared.heads)),
        items=list(map(texts, prepared.items)),
        runs=list(map(run, prepared.runs)),
        steps=[(m, but_json(row)) for m, row in prepared.steps],
        injections=[(m, texts(row)) for m, row in prepared.injections],
        decisions=list(map(texts, prepared.decisions)),
        usage=[(m, texts(row)) for m, row in prepared.usage],
        certain=prepared.certain,
    )


def _all_differ(keys: Sequence[Row]) -> bool:
    return len(set(keys)) == len(keys)
