"""Steps: one assistant message with everything that answers it.

`extract` reads them off chat messages (how, and in which protocols, says `reader`),
`steps_from_records` takes plain records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.steering.content import Content, read_calls, text
from gateway.steering.reader import Change, Draft, StepReader
from gateway.steering.step import Action, Step

__all__ = ["Action", "Step", "extract", "is_final", "steps_from_records"]


def is_final(step: Step) -> bool:
    """Whether the step calls nothing, in any protocol."""
    return not step.actions


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
        name=text(record.get("action")) or _first_call(record.get("tool_calls")),
        arguments=text(record.get("action_input")),
        observation=text(record.get("observation")),
        is_error=bool(record.get("is_error") or record.get("observation_is_error")),
    )
    # A result without a call still counts for the monitors that look at results.
    acts = action != Action(name="")
    return Step(index=index, thought=text(record.get("thought")), actions=(action,) if acts else ())


def _first_call(entries: object) -> str:
    if not isinstance(entries, list | tuple) or not entries:
        return ""
    if isinstance(entries[0], str):
        return entries[0]
    return read_calls({"tool_calls": entries[:1]}, Content())[0].name
