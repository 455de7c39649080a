"""The statement that commits a group of calls, all of it for the calls whose version is current.

Its parameters are a JSON array of rows for each table. Text in one piece, because the driver asks
of every element of an array whether it is an array itself: with an array for each of 130 columns a
call of the gateway took 2.5 million instructions more, of 11.3.

Rows are locked in one order by every gateway: conversations by id, first those to be created, then
those to be changed; runs, steps and hashes belong to a conversation that is locked by then; items
by id; the sums by the hour in the order of their keys. So two gateways never wait for each other
in a circle."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import orjson

from gateway.features.postgres.schema import DAY_BITS, TODAY
from gateway.stores import usage
from gateway.stores.codec import (
    CONVERSATION_COLUMNS,
    DECISION_COLUMNS,
    INJECTION_COLUMNS,
    STEP_COLUMNS,
    SUM_COLUMNS,
    UPDATE_COLUMNS,
    decision_row,
    injection_row,
    step_row,
    totals_row,
    update_row,
)
from gateway.stores.commit_plan import StepPlan, usage_rows
from gateway.stores.records import CallRecord, ConversationRecord, InjectionRow, RunUpdate
from gateway.stores.redact import encodable
from gateway.stores.sql.engine import columns
from gateway.stores.sql.states import root_key
from gateway.stores.totals import RunTotals
from gateway.values import FieldDict, Texts, Value, by_name

# PostgreSQL keeps no NUL in a text. It becomes two characters, and so does the character that marks
# this; both come back as they were. JSON columns need none of it: JSON writes a NUL as an escape.
_MARK = "\U0010ffff"  # a code point that Unicode promises never to assign
_NUL = _MARK + "0"
_MARK_ITSELF = _MARK + "1"


def stored_text(text: str) -> str:
    """`text` as a text column keeps it; unpaired surrogates become U+FFFD."""
    if _MARK in text or "\x00" in text:
        text = text.replace(_MARK, _MARK_ITSELF).replace("\x00", _NUL)
    if text.isascii():
        return text
    return encodable(text)


def read_text(value: Any) -> Any:
    """A value of a text column as it was stored; any other value is unchanged."""
    if isinstance(value, str) and _MARK in value:
        return value.replace(_NUL, "\x00").replace(_MARK_ITSELF, _MARK)
    return value


def stored_json(text: str) -> str:
    """A JSON object as a column keeps it that is searched, and which may not contain a NUL even as
    an escape."""

    def stored(value: Any) -> Any:
        if isinstance(value, dict):
            return {stored_text(name): stored(item) for name, item in value.items()}
        if isinstance(value, str):
            return stored_text(value)
        return value

    return orjson.dumps(stored(orjson.loads(text))).decode()


def read_json(text: str | None) -> str | None:
    """A JSON text whose names were stored with `stored_text`, as it was."""
    if text is not None and _MARK in text:
        return text.replace(_NUL, "\\u0000").replace(_MARK_ITSELF, _MARK)
    return text


# Its parameters are a JSON array of rows for each table. Text in one piece, because the driver asks
# of every element of an array whether it is an array itself: with an array for each of 130 columns
# a call of the gateway took 2.5 million instructions more, of 11.3. Rows are locked in one order by
# every gateway: conversations by id, first those to be created, then those to be changed; runs,
# steps and hashes belong to a conversation that is locked by then; items by id; the sums by the
# hour in the order of their keys. So two gateways never wait for each other in a circle.
Row = tuple[Any, ...]

_TYPES = {
    **dict.fromkeys(("sequence", "step_index", "ordinal", "message_position"), "int8"),
    **dict.fromkeys(("version", "message_count"), "int8"),
    **dict.fromkeys(("started_at", "updated_at", "ended_at", "created_at", "at"), "float8"),
    **dict.fromkeys(("difficulty", "composite", "similarity", "share"), "float8"),
    **dict.fromkeys(("applied", "has_tools", "given"), "bool"),
    **dict.fromkeys(("served_head", "signature"), "bytea"),
}
_COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
_FLOAT_SUMS = (*_COSTS, "composite_peak", "composite_sum", "latency_s", "overhead_ms")
_SUMS = {name: "float8" if name in _FLOAT_SUMS else "int8" for name in SUM_COLUMNS}


def _typed(names: Sequence[str]) -> dict[str, str]:
    return {name: _TYPES.get(name, "text") for name in names}


_SHORT = tuple(name for name in CONVERSATION_COLUMNS if name != "state")
_UPDATE = _typed(UPDATE_COLUMNS)
_ADDED = {**dict.fromkeys(usage.SUMS, "int8"), "cost_usd": "float8"} | dict.fromkeys(
    usage.AMOUNTS, "float8"
)
# The columns of a group's tables and their types, in the order of the parameters: conversations,
# heads, items, runs, steps, injections (guidance), decisions about lessons, usage. `n` and `m`: the
# number of the row's conversation and run in the group, from 1.
_TABLES = {
    # The state is long: Base64 costs a fraction of what hexadecimal digits do.
    "c": {"n": "int8", **_typed((*_SHORT, "state"))},
    "h": {
        "n": "int8",
        "root": "int8",
        "digest": "bytea",
        "kind": "text",
        "position": "int8",
        "step": "int8",
    },
    "i": {"n": "int8", "id": "text", "content": "bytea"},
    "r": {
        "m": "int8",
        "n": "int8",
        "id": "text",
        **_UPDATE,
        **_SUMS,
        "counts": "text",
        "bytes": "int8",
    },
    "s": {"m": "int8", **_typed(STEP_COLUMNS)},
    "g": {"m": "int8", **_typed(INJECTION_COLUMNS)},
    "d": {"n": "int8", **_typed(DECISION_COLUMNS)},
    "u": {"m": "int8", "hour": "int8", "agent": "text", "model": "text", **_ADDED},
}

_NAMES = {name: tuple(columns) for name, columns in _TABLES.items()}
_OF_RUNS = ("s", "g", "u")
_JSON = ("readings", "call", "content")
_AS_THEY_ARE = frozenset((*_JSON, "counts", "tags"))
_conversation: Callable[[ConversationRecord], Row] = attrgetter(*_SHORT)

# Additions of a call to one run: its steps, and the guidance that is not stored yet.
Delta = tuple[StepPlan, Sequence[InjectionRow]]


class PreparedRows(Value):
    """One call as rows of the tables of a group."""

    call: CallRecord  # what is stored
    # by table, without the column `n`; runs count within the call, from 0
    rows: Mapping[str, Sequence[Row]]
    certain: bool  # all of it is new by its form alone: no step or guidance occurs twice


def everything(call: CallRecord, run: RunUpdate) -> Delta:
    """Returns all changes that the call brings to a run of which nothing is stored yet."""
    steps = list(call.steps)
    injections = list(call.injections)
    if len(call.runs) > 1:
        steps = [step for step in steps if step.run_id == run.id]
        injections = [row for row in injections if row.run_id == run.id]
    return StepPlan(fresh=steps, called=[step for step in steps if step.call]), injections


def prepare(
    call: CallRecord, deltas: Sequence[Delta] | None = None, *, careful: bool = False
) -> PreparedRows:
    """The rows of a call. `deltas`: of its runs, None when nothing of them is stored. `careful`:
    its texts contain what the database does not take as it is. Raises: UnicodeEncodeError,
    orjson.JSONEncodeError for texts and numbers that JSON cannot write."""
    record = call.conversation
    if deltas is None:
        deltas = [everything(call, run) for run in call.runs]
    of_runs = list(zip(call.runs, deltas, strict=True))
    steps = [[step_row(step) for step in plan.fresh] for plan, _ in deltas]
    rows = {
        "c": [(*_conversation(record), b64encode(record.state).decode())],
        "h": [(root_key(h.root), h.digest, h.kind, h.position, h.step) for h in call.heads],
        "i": [(item.id, item.content) for item in call.items],
        "r": [_run_row(*each, *steps[m], careful=careful) for m, each in enumerate(of_runs)],
        "s": [(m, *row) for m, some in enumerate(steps) for row in some],
        "g": [(m, *injection_row(row)) for m, (_, added) in enumerate(deltas) for row in added],
        "d": [decision_row(row) for row in call.decisions],
        "u": [
            (m, *row)
            for m, (run, (plan, _)) in enumerate(of_runs)
            for row in usage_rows(run, plan.scored, plan.called)
        ],
    }
    certain = all(
        len({row[:width] for row in rows[name]}) == len(rows[name])
        for name, width in (("s", 2), ("g", 3))
    )
    return PreparedRows(
        call=call, rows=_with_stored_texts(rows) if careful else rows, certain=certain
    )


def _run_row(run: RunUpdate, delta: Delta, *steps: Row, careful: bool) -> Row:
    plan, added = delta
    totals = plan.totals(RunTotals(), [row.source for row in added if row.applied])
    *sums, counts = totals_row(totals)
    *about, tags = update_row(run)
    if careful:
        counts = stored_json(counts)
        tags = stored_json(tags)
    # About how much room the rows take, for the limit of the log's size.
    texts = [text for row in steps for text in row[-len(_JSON) :] if text]
    size = sum(map(len, texts)) + sum([len(row.text) for row in added])
    return (run.id, *about, tags, *sums, counts, size)


def _with_stored_texts(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    def stored(names: Sequence[str], row: Row) -> Row:
        return tuple(
            [
                stored_text(value) if isinstance(value, str) and name not in _AS_THEY_ARE else value
                for name, value in zip(names[-len(row) :], row, strict=True)
            ]
        )

    return {name: [stored(_NAMES[name], row) for row in rows] for name, rows in tables.items()}


def parameters(group: Sequence[PreparedRows]) -> list[bytes]:
    """The rows of each table, as JSON in UTF-8. Raises: orjson.JSONEncodeError for texts that JSON
    cannot write."""
    tables: dict[str, list[FieldDict]] = {name: [] for name in _TABLES}
    for n, each in enumerate(group, start=1):
        first_run = len(tables["r"]) + 1
        for name, rows in each.rows.items():
            if name in _OF_RUNS:
                rows = [(first_run + row[0], *row[1:]) for row in rows]
            elif name == "r":
                rows = [(first_run + m, n, *row) for m, row in enumerate(rows)]
            else:
                rows = [(n, *row) for row in rows]
            tables[name] += [by_name(_NAMES[name], row) for row in rows]
    return [orjson.dumps(rows, default=_bytea) if rows else b"[]" for rows in tables.values()]


def _bytea(value: Any) -> str:
    """Bytes as the database reads them."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError(f"{type(value).__name__} has no place in a row")


# The key of a new run: the partition of its steps follows from it.
_RUN_KEY = f"({TODAY} << {DAY_BITS}) + nextval('run_numbers')"


def _table(position: int, name: str, kinds: Texts) -> str:
    """A parameter as a table."""
    typed = ", ".join(f"{column} {kind}" for column, kind in kinds.items())
    parameter = f"convert_from(${position}, 'UTF8')::json"
    return f"{name} AS MATERIALIZED (SELECT * FROM json_to_recordset({parameter}) AS t({typed}))"


def _sum(name: str) -> str:
    """Sum of a total of the stored run `x` and that of the call."""
    if name in ("steps", "composite_peak"):
        return f"{name} = greatest(x.{name}, excluded.{name})"
    if name in _COSTS:
        known = f"coalesce(x.{name}, 0) + excluded.{name}"
        return f"{name} = CASE WHEN excluded.{name} IS NULL THEN x.{name} ELSE {known} END"
    return f"{name} = x.{name} + excluded.{name}"


# $1 is the value of `synchronous_commit`.
_PARAMETERS = ",\n".join(_table(n, *each) for n, each in enumerate(_TABLES.items(), start=2))
_CONVERSATION = columns(CONVERSATION_COLUMNS)
_STATE = "decode(c.state, 'base64')"
_FIRST = ", ".join(
    {"version": "1", "state": _STATE}.get(name, name) for name in CONVERSATION_COLUMNS
)
_RUN = ", ".join(name for name in ("id", *_UPDATE, *_SUMS, "bytes") if name != "tags")
_USAGE_KEY = "hour, tenant, agent, model, tags"
_USAGE_ADDED = ", ".join(f"{n} = x.{n} + excluded.{n}" for n in (*usage.SUMS, *usage.AMOUNTS))
_USAGE_SUMS = ", ".join(f"sum(u.{name})::{kind}" for name, kind in _ADDED.items())
# The stored outcome stays when the call has none, or only a derived one for a reported one.
_STAYS = (
    "excluded.outcome IS NULL OR (x.outcome IS NOT NULL AND x.outcome_source <> 'derived' "
    "AND excluded.outcome_source = 'derived')"
)
_DESCRIPTION = ", ".join(
    f"{name} = CASE WHEN excluded.updated_at = 0 THEN x.{name} ELSE excluded.{name} END"
    for name in ("state", "mode", "policy_digest", "model_requested", "updated_at")
)
_DESCRIPTION += ", task_preview = coalesce(nullif(x.task_preview, ''), excluded.task_preview)"


def _commit(stored: str) -> str:
    """`stored`: which steps and guidance of a run may be stored already, by their number."""
    return f"""
WITH durability AS MATERIALIZED (SELECT set_config('synchronous_commit', $1, true) AS mode),
{_PARAMETERS},
stored AS MATERIALIZED (
    SELECT r.n, r.m, x.pk, x.steps, x.tenant, x.tags FROM r JOIN runs AS x ON x.id = r.id
),
-- Calls with rows that may be stored already, or with a run of another tenant: not in a group.
barred AS MATERIALIZED (
    SELECT x.n FROM stored AS x JOIN c USING (n) WHERE x.tenant <> c.tenant
    UNION SELECT x.n FROM stored AS x JOIN s USING (m) WHERE s.step_index {stored}
    UNION SELECT x.n FROM stored AS x JOIN g USING (m) WHERE g.step_index {stored}
),
inserted AS (
    INSERT INTO conversations ({_CONVERSATION})
    SELECT {_FIRST} FROM c
    WHERE version = 0 AND n NOT IN (SELECT n FROM barred)
        AND (SELECT mode FROM durability) <> ''
    ORDER BY id
    ON CONFLICT (id) DO NOTHING RETURNING pk, id
),
locked AS MATERIALIZED (
    SELECT v.pk, c.n FROM c JOIN conversations AS v ON v.id = c.id
    WHERE c.version > 0 AND c.n NOT IN (SELECT n FROM barred)
        AND (SELECT count(*) FROM inserted) >= 0
    ORDER BY v.id FOR UPDATE OF v
),
updated AS (
    UPDATE conversations AS v
    SET version = v.version + 1, updated_at = c.updated_at, served_head = c.served_head,
        message_count = c.message_count, signature = c.signature, has_tools = c.has_tools,
        state = {_STATE}
    FROM locked JOIN c USING (n)
    WHERE v.pk = locked.pk AND v.version = c.version AND v.tenant = c.tenant
    RETURNING v.pk, c.n
),
passed AS MATERIALIZED (
    SELECT x.pk AS conversation_pk, c.n, c.tenant FROM inserted AS x JOIN c USING (id)
    UNION ALL SELECT x.pk, c.n, c.tenant FROM updated AS x JOIN c USING (n)
),
run AS MATERIALIZED (
    SELECT r.*, p.conversation_pk, p.tenant, coalesce(x.pk, {_RUN_KEY}) AS pk,
        r.tags::jsonb || coalesce(x.tags, '{{}}') AS all_tags
    FROM r JOIN passed AS p USING (n) LEFT JOIN stored AS x USING (m)
    WHERE r.updated_at > 0 OR x.pk IS NOT NULL
),
kept_heads AS (
    INSERT INTO heads (root, digest, conversation_pk, kind, position, step)
    SELECT h.root, h.digest, p.conversation_pk, h.kind, h.position, h.step
    FROM h JOIN passed AS p USING (n)
    ON CONFLICT DO NOTHING
),
kept_items AS (
    INSERT INTO items AS x (tenant, id, conversation_pk, content)
    SELECT DISTINCT ON (p.tenant, i.id) p.tenant, i.id, p.conversation_pk, i.content
    FROM i JOIN passed AS p USING (n) ORDER BY p.tenant, i.id, n DESC
    ON CONFLICT (tenant, id) DO UPDATE
    SET conversation_pk = excluded.conversation_pk, content = excluded.content
),
kept_runs AS (
    INSERT INTO runs AS x (pk, conversation_pk, tenant, {_RUN}, counts, tags)
    SELECT pk, conversation_pk, tenant, {_RUN}, counts::jsonb, tags::jsonb FROM run
    ON CONFLICT (id) DO UPDATE SET
        ended_at = coalesce(excluded.ended_at, x.ended_at), {_DESCRIPTION},
        outcome = CASE WHEN {_STAYS} THEN x.outcome ELSE excluded.outcome END,
        outcome_source = CASE WHEN {_STAYS} THEN x.outcome_source ELSE excluded.outcome_source END,
        {", ".join(map(_sum, _SUMS))},
        counts = gateway_add_counts(x.counts, excluded.counts), bytes = x.bytes + excluded.bytes,
        tags = excluded.tags || x.tags
),
kept_steps AS (
    INSERT INTO steps (run_pk, {columns(STEP_COLUMNS)})
    SELECT run.pk, {columns(STEP_COLUMNS, "s.")} FROM s JOIN run USING (m)
),
kept_injections AS (
    INSERT INTO injections (run_pk, {columns(INJECTION_COLUMNS)})
    SELECT run.pk, {columns(INJECTION_COLUMNS, "g.")} FROM g JOIN run USING (m)
),
kept_decisions AS (
    INSERT INTO pattern_decisions ({columns(DECISION_COLUMNS)}, tenant, at)
    SELECT {columns(DECISION_COLUMNS, "d.")}, c.tenant, c.updated_at
    FROM d JOIN passed USING (n) JOIN c USING (n)
    ON CONFLICT DO NOTHING
),
-- Sums that all gateways add to: last, and in one order.
kept_usage AS (
    INSERT INTO usage_by_hour AS x ({_USAGE_KEY}, {columns(tuple(_ADDED))})
    SELECT u.hour, run.tenant, u.agent, u.model, run.all_tags, {_USAGE_SUMS}
    FROM u JOIN run USING (m) GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT ({_USAGE_KEY}) DO UPDATE SET {_USAGE_ADDED},
        cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN x.cost_usd
            ELSE coalesce(x.cost_usd, 0) + excluded.cost_usd END
)
SELECT c.n, p.n IS NOT NULL, b.n IS NOT NULL
FROM c LEFT JOIN passed AS p USING (n) LEFT JOIN barred AS b USING (n) ORDER BY c.n
"""


# Gives for each call its number, whether it was stored, and whether it was barred.
COMMIT = _commit("<= x.steps")
# The same for a call of whose rows nothing is stored: none is barred for its steps.
COMMIT_ALONE = _commit("< -1")
