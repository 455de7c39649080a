"""All texts of a step as plain text, where the page shows only their beginnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.stores.records import InjectionRow, StepRow
from gateway.text.sanitize import visible


def step_text(step: StepRow, guidance: Sequence[InjectionRow]) -> str:
    """The texts of a step under headings, sanitized for a terminal and a browser."""
    parts = [f"=== {heading}\n{text}" for heading, text in _parts(step, guidance)]
    return visible("\n\n".join(parts))


def _parts(step: StepRow, guidance: Sequence[InjectionRow]) -> Iterator[tuple[str, str]]:
    content = step.content
    if content is not None:
        for message in content.messages:
            yield f"{message.role} message", message.text
        if content.thought:
            yield "thought", content.thought
        if content.reasoning:
            yield "reasoning", content.reasoning
        for action in content.actions:
            yield f"call of {action.name}", action.arguments
            yield "error" if action.is_error else "result", action.observation
    for row in guidance:
        if row.step_index == step.step_index:
            yield f"guidance ({row.source}, {row.placement or 'not placed'})", row.text
    if content is not None:
        if content.reply_text:
            yield "reply", content.reply_text
        for action in content.reply_actions:
            yield f"next call of {action.name}", action.arguments
