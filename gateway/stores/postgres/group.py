"""The calls of one group as the arrays of one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.stores import codec
from gateway.stores.postgres.text import stored_text
from gateway.stores.records import CallRecord, InjectionRow, RunUpdate, StepRow
from gateway.stores.totals import RunTotals

Row = tuple[Any, ...]

_CONVERSATION = {
    **dict.fromkeys(("id", "tenant", "source", "parent_id", "external_key"), "text"),
    "version": "int8",
    **dict.fromkeys(("created_at", "updated_at"), "float8"),
    "served_head": "bytea",
    "message_count": "int8",
    "signature": "bytea",
    "has_tools": "bool",
    "state": "bytea",
}
_HEAD = {
    "root": "int8",
    "digest": "bytea",
    "kind": "text",
    "position": "int8",
    "step": "int8",
}
_ITEM = {"id": "text", "content": "bytea"}
_OTHER_TYPES = {
    **dict.fromkeys(("sequence", "step_index", "ordinal", "message_position"), "int8"),
    **dict.fromkeys(("started_at", "updated_at", "ended_at", "at"), "float8"),
    **dict.fromkeys(("difficulty", "composite", "similarity"), "float8"),
    "applied": "bool",
}
COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
_FLOAT_SUMS = (*COSTS, "composite_peak", "composite_sum", "latency_s", "overhead_ms")
SUMS = {name: "float8" if name in _FLOAT_SUMS else "int8" for name in codec.SUM_COLUMNS}
UPDATE = {name: _OTHER_TYPES.get(name, "text") for name in codec.UPDATE_COLUMNS}
_RUN = {"id": "text", **UPDATE, **SUMS, "counts": "text", "bytes": "int8"}
STEP = {name: _OTHER_TYPES.get(name, "text") for name in codec.STEP_COLUMNS}
INJECTION = {name: _OTHER_TYPES.get(name, "text") for name in codec.INJECTION_COLUMNS}

TABLES: Mapping[str, Mapping[str, str]] = {
    "c": _CONVERSATION,
    "h": {"n": "int8", **_HEAD},
    "i": {"n": "int8", **_ITEM},
    "r": {"n": "int8", **_RUN},
    "s": {"m": "int8", **STEP},
    "g": {"m": "int8", **INJECTION},
}
"""The arrays of a group as tables, in the order of their parameters: conversations, heads, items,
runs, steps, injections (guidance). `n` and `m`: the number of the row's conversation and run."""

NUMBERED = {"c": "n", "r": "m"}
"""The tables whose rows are numbered from 1, and the name of that number."""

_JSON = ("readings", "call", "content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
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
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a call adds to one run: steps and guidance that are not stored yet, and totals."""

    steps: Sequence[StepRow] = ()
    injections: Sequence[InjectionRow] = ()
    totals: RunTotals = field(default_factory=RunTotals)


def root_key(root: bytes) -> int:
    """The integer that stands for the first hash of a history."""
    return int.from_bytes(root[:8], "big", signed=True)


def everything(call: CallRecord, run: RunUpdate) -> Delta:
    """All that the call says of a run, for one of which nothing is stored yet."""
    steps = [step for step in call.steps if step.run_id == run.id]
    injections = [row for row in call.injections if row.run_id == run.id]
    totals = RunTotals().including(
        steps,
        [step.call for step in steps if step.call],
        retries=0,
        injections=sum(row.applied for row in injections),
    )
    return Delta(steps=steps, injections=injections, totals=totals)


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
    steps = [(m, codec.step_row(step)) for m, d in enumerate(deltas) for step in d.steps]
    injected = [(m, codec.injection_row(row)) for m, d in enumerate(deltas) for row in d.injections]
    heads = [(root_key(h.root), h.digest, h.kind, h.position, h.step) for h in call.heads]
    prepared = Prepared(
        call=call,
        conversation=tuple([getattr(record, name) for name in codec.CONVERSATION_COLUMNS]),
        heads=heads,
        items=[(item.id, item.content) for item in call.items],
        runs=[_run_row(run, d, careful) for run, d in zip(call.runs, deltas, strict=True)],
        steps=steps,
        injections=injected,
        certain=_all_differ((m, row[0]) for m, row in steps)
        and _all_differ((m, row[0], row[1]) for m, row in injected),
    )
    return _with_stored_texts(prepared) if careful else prepared


def arrays(group: Sequence[Prepared]) -> list[list[Any]]:
    """The columns of TABLES, one array each."""
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    for n, each in enumerate(group, start=1):
        first_run = len(rows["r"]) + 1
        rows["c"].append(each.conversation)
        rows["h"] += [(n, *row) for row in each.heads]
        rows["i"] += [(n, *row) for row in each.items]
        rows["r"] += [(n, *row) for row in each.runs]
        rows["s"] += [(first_run + m, *row) for m, row in each.steps]
        rows["g"] += [(first_run + m, *row) for m, row in each.injections]
    columns: list[list[Any]] = []
    for name, kinds in TABLES.items():
        columns += map(list, zip(*rows[name], strict=True)) if rows[name] else [[] for _ in kinds]
    return columns


def _run_row(run: RunUpdate, delta: Delta, careful: bool) -> Row:
    *sums, counts = codec.totals_row(delta.totals)
    if careful:
        named = {
            counter: {stored_text(name): count for name, count in entries.items()}
            for counter, entries in orjson.loads(counts).items()
        }
        counts = orjson.dumps(named).decode()
    return (run.id, *codec.update_row(run), *sums, counts, _bytes_of(delta))


def _bytes_of(delta: Delta) -> int:
    """About how much room the rows of one call take, for the limit of the log's size."""
    texts = [text for step in delta.steps for text in codec.step_row(step)[-3:] if text]
    return sum(map(len, texts)) + sum(len(row.text) for row in delta.injections)


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
        certain=prepared.certain,
    )


def _all_differ(keys: Iterable[Row]) -> bool:
    listed = list(keys)
    return len(set(listed)) == len(listed)
