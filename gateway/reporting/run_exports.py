"""Runs as lines for other programs: JSON, CSV, and the chat form that OpenAI's tools read. Pure."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import orjson
from msgspec.structs import asdict

from gateway.core.step import Action
from gateway.data_files import read_text
from gateway.reporting.trace_state import trace_state
from gateway.stores.records import StepRow
from gateway.stores.totals import RunRecord
from gateway.stores.traces import RunTrace
from gateway.stores.usage import Group, Sums
from gateway.values import FieldDict
from gateway.wire.coerce import as_json_value

FORMATS = ("jsonl", "csv", "openai")
MEDIA = {"jsonl": "application/x-ndjson", "csv": "text/csv", "openai": "application/x-ndjson"}
# The columns of runs as CSV; `tags` is `team=web;env=prod`. Those of `estimated_` are the parts of
# calls, tokens and cost that no provider has reported.
_ESTIMATED = ("calls", "tokens", "cost_usd")
_NOT_STOPPED: FieldDict = {"stopped": "", "stopped_at": None, "stopped_why": ""}
RUN_COLUMNS = read_text(__package__, "run_columns.txt").split()
_SUM_COLUMNS = tuple(f.name for f in fields(Sums))


def export_lines(traces: Sequence[RunTrace], form: str, *, first: bool) -> bytes:
    """Yields some runs in one of FORMATS. `first`: begin with the head, if the form has one."""
    if form == "csv":
        head = [RUN_COLUMNS] if first else []
        return csv_lines([*head, *(run_row(trace.run) for trace in traces)])
    make = trace_state
    if form == "openai":
        make = _chat
    return b"".join(orjson.dumps(made, default=as_json_value) + b"\n" for made in map(make, traces))


def run_row(run: RunRecord) -> list[Any]:
    """One run in the order of RUN_COLUMNS."""
    totals = run.totals
    values = {
        **asdict(run),
        **asdict(totals),
        **{f"estimated_{name}": totals.estimated.get(name, 0) for name in _ESTIMATED},
        "tags": ";".join(f"{name}={value}" for name, value in run.tags.items()),
        "interventions": sum(totals.human.values()),
        "handed_over": run.handed_over,
        **_NOT_STOPPED,
    }
    if stop := run.stopped:
        values |= {"stopped": stop.words, "stopped_at": stop.at, "stopped_why": stop.why}
    return [values[name] for name in RUN_COLUMNS]


def group_lines(by: str, groups: Sequence[Group]) -> bytes:
    """Groups of runs as CSV, with a head."""
    rows = [[g.value, *(getattr(g.sums, name) for name in _SUM_COLUMNS)] for g in groups]
    return csv_lines([[by, *_SUM_COLUMNS], *rows])


def csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows as CSV. A text that a spreadsheet would take for a formula is quoted with `'`."""
    out = io.StringIO()
    formulas = ("=", "+", "-", "@", "\t", "\r")
    csv.writer(out, lineterminator="\n").writerows(
        [f"'{v}" if isinstance(v, str) and v.startswith(formulas) else v for v in row]
        for row in rows
    )
    return out.getvalue().encode("utf-8", "replace")


def _chat(trace: RunTrace) -> FieldDict:
    """The run as one list of messages, as agents send it. Guidance is no part of it."""
    run = trace.run
    messages = [message for message, _ in chat_messages(trace.steps)]
    about = {"run_id": run.id, "outcome": run.outcome, "model": run.model_requested}
    return {"messages": messages, "metadata": {**about, "tags": run.tags}}


def chat_messages(steps: Sequence[StepRow]) -> Iterator[tuple[FieldDict, int]]:
    """The messages of a run, each with the index of the step it belongs to."""
    for step in steps:
        yield from ((message, step.step_index) for message in _messages(step))
    newest = steps[-1] if steps else None
    if newest and newest.content and (newest.content.reply_text or newest.content.reply_actions):
        # No later request has brought the reply to the newest call back as a step.
        reply = newest.content
        index = newest.step_index + 1
        yield _assistant(reply.reply_text, reply.reply_actions, index), index


def _messages(step: StepRow) -> Iterator[FieldDict]:
    content = step.content
    if content is None:
        return
    if step.step_index:
        yield _assistant(content.thought, content.actions, step.step_index)
        for number, action in enumerate(content.actions):
            call_id = f"call_{step.step_index}_{number}"
            yield {"role": "tool", "tool_call_id": call_id, "content": action.observation}
    for message in content.messages:
        yield {"role": message.role, "content": message.text}


def _assistant(text: str, actions: Sequence[Action], step: int) -> FieldDict:
    if not actions:
        return {"role": "assistant", "content": text}
    calls = [
        {
            "id": f"call_{step}_{number}",
            "type": "function",
            "function": {"name": action.name, "arguments": action.arguments},
        }
        for number, action in enumerate(actions)
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}
