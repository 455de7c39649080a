"""Converts records to table rows and back."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import orjson

from gateway.stores.learning import READER, TITLE, DecisionRow
from gateway.stores.records import (
    CallRow,
    ConversationRecord,
    InjectionRow,
    RunUpdate,
    StepContent,
    StepReadings,
    StepRow,
)
from gateway.stores.stopped_by import Stop, held, stop_of
from gateway.stores.totals import HAND_OVER, ExperimentRun, RunRecord, RunTotals
from gateway.values import FieldDict, T, Texts, by_name
from gateway.wire.coerce import as_json_value


def names(kind: type, *without: str) -> tuple[str, ...]:
    """The field names of a struct or a dataclass, in order."""
    found = getattr(kind, "__struct_fields__", None) or [f.name for f in fields(kind)]
    return tuple(name for name in found if name not in without)


# The counters of a run share one JSON column, `counts`.
_COUNTERS = (
    "states",
    "fired",
    "failure_types",
    "models",
    "severity",
    "unsteered",
    "estimated",
    "lost_tokens",
    "lost_usd",
    "guidance",
    "human",
    "asked",
    "acts",
)
_ASKED_STORED = "at_risk"  # the name of `asked` in the column, which earlier versions read, too

CONVERSATION_COLUMNS = names(ConversationRecord)
SUM_COLUMNS = names(RunTotals, *_COUNTERS)
UPDATE_COLUMNS = (*names(RunUpdate, "id", "tags"), "tags")
RUN_COLUMNS = (*names(RunRecord, "totals", "tags", "stopped", "read_title"), "tags")
# A value of the hold on a run or on what is above it: a conversation's is not for runs that had
# ended before.
HOLD = (
    "(SELECT {} FROM run_controls AS h WHERE h.subject = r.id OR "
    "coalesce(r.ended_at, h.at) >= h.at AND h.subject IN (c.id, c.parent_id, c.root_id) "
    "ORDER BY h.action DESC, h.at LIMIT 1)"
)
# The newest call, which a budget may have refused, and the hold.
STOP_COLUMNS = (
    "(SELECT s.call FROM steps AS s WHERE s.run_pk = r.pk ORDER BY s.step_index DESC LIMIT 1)",
    HOLD.format(
        "h.action || '\t' || CAST(round(h.at * 1000) AS BIGINT) || '\t' || h.subject "
        "|| '\t' || h.author || '\t' || h.reason"
    ),
)
READ_TITLE = (
    "coalesce((SELECT o.comment FROM outcomes AS o WHERE o.run_id = r.id AND o.source = "
    f"'{READER}' AND o.metric = '{TITLE}' ORDER BY o.pk DESC LIMIT 1), '')"
)
_COLUMNS = (*RUN_COLUMNS, *SUM_COLUMNS, "counts")
# The id of the session of `conversations AS c`. Rows of older gateways name the parent only.
SESSION = "coalesce(c.root_id, c.parent_id, c.id)"
_OF_CONVERSATIONS = {"conversation_id": "c.id", "session_id": SESSION}
# The columns that `run_of` reads, from RUNS.
RUN = ", ".join(
    [
        *STOP_COLUMNS,
        READ_TITLE,
        *[_OF_CONVERSATIONS.get(name, f"r.{name}") for name in _COLUMNS],
    ]
)
RUNS = "runs AS r JOIN conversations AS c ON c.pk = r.conversation_pk"
_STEP_VALUES = ("step_index", "at", "state", "difficulty", "composite", "failure_type")
STEP_COLUMNS = (*_STEP_VALUES, "readings", "call", "content")
# The columns of a step that its scores give.
SCORE_COLUMNS = ("state", "difficulty", "composite", "failure_type", "readings")
# The first three are stored if any field is known, the others where they are not empty.
_READINGS = StepReadings.__struct_fields__
_FOUND = _READINGS[3:]
INJECTION_COLUMNS = names(InjectionRow, "run_id")
INJECTIONS = ", ".join(INJECTION_COLUMNS)
DECISION_COLUMNS = names(DecisionRow)
_NO_RISK = -1.0
_sums = attrgetter(*SUM_COLUMNS)
_counters = attrgetter(*_COUNTERS)
_step = attrgetter(*_STEP_VALUES)
_update = attrgetter(*UPDATE_COLUMNS[:-1])
injection_row: Callable[[InjectionRow], tuple[Any, ...]] = attrgetter(*INJECTION_COLUMNS)
decision_row: Callable[[DecisionRow], tuple[Any, ...]] = attrgetter(*DECISION_COLUMNS)


def update_row(run: RunUpdate) -> tuple[Any, ...]:
    """To UPDATE_COLUMNS."""
    return (*_update(run), tags_json(run.tags))


def tags_json(tags: Texts) -> str:
    """To the `tags` column, in order of the names."""
    if tags:
        return _json(dict(sorted(tags.items())))
    return "{}"


def conversation_of(row: Sequence[Any]) -> ConversationRecord:
    """From CONVERSATION_COLUMNS."""
    values = by_name(CONVERSATION_COLUMNS, row)
    values["has_tools"] = bool(values["has_tools"])
    return ConversationRecord(**values)


def totals_row(totals: RunTotals) -> tuple[Any, ...]:
    """To SUM_COLUMNS and `counts`."""
    counts = dict(zip(_COUNTERS, _counters(totals), strict=True))
    counts[_ASKED_STORED] = counts.pop("asked")
    if counts["acts"]:
        # The pilot's report of the version before reads a risk beside the first act.
        counts["acts"] = {**counts["acts"], "risk": _NO_RISK}
    return (*_sums(totals), _json(counts))


def totals_of(row: Sequence[Any]) -> RunTotals:
    """From SUM_COLUMNS and `counts`. A state that no step has any more is left out."""
    counts = _counts_of(row[-1])
    if states := counts.get("states"):
        counts["states"] = {name: number for name, number in states.items() if number}
    return RunTotals(**dict(zip(SUM_COLUMNS, row[:-1], strict=True)), **counts)


def _counts_of(text: str) -> FieldDict:
    """From the `counts` column. Earlier versions stored a reading among the times of acts, and
    counters that this one has no use for."""
    stored = orjson.loads(text)
    counts = {name: stored[name] for name in _COUNTERS if name in stored}
    counts["asked"] = {k: n for k, n in stored.get(_ASKED_STORED, {}).items() if k == HAND_OVER}
    counts.get("acts", {}).pop("risk", None)
    return counts


def run_of(row: Sequence[Any]) -> RunRecord:
    """From STOP_COLUMNS, the title, RUN_COLUMNS, then SUM_COLUMNS and `counts`."""
    newest, hold, title, *row = row
    width = len(RUN_COLUMNS)
    values = by_name(RUN_COLUMNS, row[:width])
    values["tags"] = orjson.loads(values["tags"]) if values["tags"] != "{}" else {}
    stopped = _stopped(newest, hold, values["updated_at"])
    totals = totals_of(row[width:])
    return RunRecord(**values, totals=totals, stopped=stopped, read_title=title)


def _stopped(newest: str | None, hold: str | None, at: float = 0.0) -> Stop | None:
    """From STOP_COLUMNS; `at`: the time of the newest call."""
    if hold is not None:
        action, since, *rest = hold.split("\t", 4)
        return held(action, int(since) / 1000, *rest)
    if newest is None or '"error":null' in newest:
        return None
    call = call_of(newest)
    return stop_of(call.error, call.reasons, at)


_SQL = Path(__file__).with_name("sql") / "experiment_run.sql"
# Columns that `experiment_run_of` reads, from RUNS.
EXPERIMENT_RUN = _SQL.read_text("utf-8").format(newest=STOP_COLUMNS[0], hold=STOP_COLUMNS[1])


def experiment_run_of(row: Sequence[Any]) -> ExperimentRun:
    """From EXPERIMENT_RUN."""
    *values, newest, hold, text = row
    counts = _counts_of(text)
    named = ("models", "estimated", "human", "acts")
    values[20:20] = [counts.get(name, {}) for name in named]
    values += [_stopped(newest, hold), counts]
    return ExperimentRun(*values)


def step_row(step: StepRow) -> tuple[Any, ...]:
    """To STEP_COLUMNS."""
    readings = None
    found = {name: value for name in _FOUND if (value := getattr(step, name))}
    if step.scores or step.fired or step.evidence or found:
        scored = {"scores": step.scores, "fired": step.fired, "evidence": step.evidence}
        readings = _json({**scored, **found})
    if step.call is None:
        call = None
    else:
        call = call_json(step.call)
    return (*_step(step), readings, call, content_json(step.content))


def score_row(step: StepRow) -> tuple[Any, ...]:
    """To SCORE_COLUMNS."""
    row = by_name(STEP_COLUMNS, step_row(step))
    return tuple([row[name] for name in SCORE_COLUMNS])


def step_of(run_id: str, row: Sequence[Any]) -> StepRow:
    """From STEP_COLUMNS."""
    *values, readings, call, content = row
    if readings is None:
        read = StepReadings()
    else:
        read = _read(readings, StepReadings)
    return StepRow(
        run_id=run_id,
        **dict(zip(STEP_COLUMNS, values, strict=False)),
        **{name: getattr(read, name) for name in _READINGS},
        call=None if call is None else call_of(call),
        content=content_of(content),
    )


def call_json(call: CallRow) -> str:
    """To the `call` column."""
    return _json(msgspec.structs.asdict(call))


def content_json(content: StepContent | None) -> str | None:
    """To the `content` column."""
    if content is None:
        return None
    return _json(content)


def call_of(text: str) -> CallRow:
    """From the `call` column."""
    return _read(text, CallRow)


def injection_of(run_id: str, row: Sequence[Any]) -> InjectionRow:
    """From INJECTION_COLUMNS."""
    values = by_name(INJECTION_COLUMNS, row)
    values["applied"] = bool(values["applied"])
    return InjectionRow(run_id=run_id, **values)


def content_of(text: str | None) -> StepContent | None:
    """From the `content` column."""
    if text is None:
        return None
    return _read(text, StepContent)


def _read(text: str, kind: type[T]) -> T:
    """The value that a JSON column holds, without unknown keys. A null or a value of another type
    becomes the field's default: earlier versions stored whatever a provider sent."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        types = get_type_hints(kind)
        values = _without_nulls(orjson.loads(text))
        known = {}
        for name in types.keys() & values.keys():
            with suppress(msgspec.ValidationError):
                known[name] = msgspec.convert(values[name], types[name])
        return kind(**known)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _json(value: Any) -> str:
    return orjson.dumps(value, default=as_json_value).decode()
