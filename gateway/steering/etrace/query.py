"""What a look-up asks: the newest steps as one text."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.steering.steps import Action, Step

MAX_STEP_CHARS = 600
"""Text of one step that goes into a query; enough for the gist, and embedding time stays flat."""
_ARGUMENT_CHARS = 120
_ERROR_CHARS = 200


def query_text(steps: Sequence[Step], count: int) -> str:
    """The newest `count` steps as the text to embed, oldest first; empty when they say nothing.

    A step is its thought (its reasoning when it has none), then its calls; the end of a failed
    call's result is added, because that is where a failure names itself.
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
