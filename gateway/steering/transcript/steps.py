"""Steps: one assistant message with everything that answers it.

`extract` reads them from chat messages (`reader` documents how, and in which protocols),
`steps_from_records` from plain records; `recent_text` is the newest ones as one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.steering.transcript.content import Content, read_calls
from gateway.steering.transcript.reader import Change, Draft, StepReader
from gateway.steering.transcript.step import Action, Step
from gateway.wire.coerce import as_text

__all__ = ["Action", "Step", "count_steps", "extract", "recent_text", "steps_from_records"]

MAX_STEP_CHARS = 600
"""Text of one step that is used; enough for the gist, and the time to embed it stays bounded."""
_ARGUMENT_CHARS = 120
_ERROR_CHARS = 200


def extract(messages: Sequence[Any]) -> tuple[Step, ...]:
    """The steps of a whole transcript of chat messages, index from 0.

    Malformed messages are read as far as they go and lose no step; never raises.
    """
    reader = StepReader()
    drafts: list[Draft] = []
    for message in messages:
        if reader.read(message) is Change.OPENED and reader.draft is not None:
            drafts.append(reader.draft)
    return tuple(draft.step() for draft in drafts)


def count_steps(messages: Sequence[Any]) -> int:
    """The number of steps that `extract` finds."""
    reader = StepReader()
    return [reader.read(message) for message in messages].count(Change.OPENED)


def steps_from_records(records: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Steps from plain step records, in order.

    Keys, all optional: `action` (tool name; when missing or empty the first entry of `tool_calls`),
    `action_input`, `thought`, `observation`, `is_error` or `observation_is_error`. Texts of another
    type count as empty. Never raises. Source: reference section 1.1.
    """
    return tuple(_record_step(index, record) for index, record in enumerate(records))


def _record_step(index: int, record: object) -> Step:
    if not isinstance(record, Mapping):
        return Step(index=index)
    action = Action(
        name=as_text(record.get("action"), "") or _first_call(record.get("tool_calls")),
        arguments=as_text(record.get("action_input"), ""),
        observation=as_text(record.get("observation"), ""),
        is_error=bool(record.get("is_error") or record.get("observation_is_error")),
    )
    # A result without a call still counts for the monitors that look at results.
    acts = action != Action(name="")
    return Step(
        index=index, thought=as_text(record.get("thought"), ""), actions=(action,) if acts else ()
    )


def _first_call(entries: object) -> str:
    if not isinstance(entries, list | tuple) or not entries:
        return ""
    if isinstance(entries[0], str):
        return entries[0]
    return read_calls({"tool_calls": entries[:1]}, Content())[0].name


def recent_text(steps: Sequence[Step], count: int) -> str:
    """The newest `count` steps as text for a look-up or a judge, oldest first; "" without text.

    A step is its thought (its reasoning when it has none), then its calls; the end of a failed
    call's result is added, because that is where the error is named.
    """
    recent = steps[-count:] if count > 0 else ()
    return "\n".join(text for step in recent if (text := _step_text(step)))


def _step_text(step: Step) -> str:
    thought = (step.thought or step.reasoning).strip()
    parts = [thought[-MAX_STEP_CHARS // 2 :]] if thought else []
    parts += [_action_text(action) for action in step.actions]
    return " ".join(parts)[:MAX_STEP_CHARS]


def _action_text(action: Action) -> str:
    text = f"{action.name} {action.arguments[:_ARGUMENT_CHARS]}".strip()
    if action.is_error:
        text += f" {action.observation[-_ERROR_CHARS:].strip()}"
    return text
