"""Lessons at the end of the failing result, where a target takes no late system message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.base import SteeredRequest
from gateway.dialects.chat import CHAT
from gateway.dialects.messages import MESSAGES
from gateway.steering.guidance.decide import Decided, Item
from gateway.steering.guidance.edits import AppendToResult
from gateway.steering.guidance.pattern import Lesson, Pattern, PatternMatch, Tier
from gateway.steering.guidance.placement import place
from gateway.steering.guidance.settings import InjectionSettings
from gateway.steering.guidance.state import GuidanceState, from_json, to_json
from gateway.steering.guidance.target import GuidanceTarget
from gateway.wire.body_prefix import AsMappings

CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
CHAT_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Work."},
    {"role": "user", "content": "Build."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "mvn: not found"},
]
PARTS = [*CHAT_MESSAGES[:3], {**CHAT_MESSAGES[3], "content": [{"type": "text", "text": "no"}]}]
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": "Build."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "bash"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "no"}]},
]
LESSON = Item(
    text="LEARNED: use gradle",
    tier=Tier.E1,
    match=PatternMatch(
        pattern=Pattern(tier=Tier.E1, fields={"guidance": "g"}, lesson=Lesson(key="k")),
        similarity=1.0,
    ),
)
OTHER = Item(text="another text", failure_type="loop")


@pytest.mark.parametrize(
    ("dialect", "messages"),
    [(CHAT, CHAT_MESSAGES), (CHAT, PARTS), (MESSAGES, BLOCKS)],
    ids=["text", "parts", "blocks"],
)
def test_a_lesson_ends_the_failing_result(dialect: Any, messages: list[dict[str, Any]]) -> None:
    """The result's own text stays in front, what is no lesson goes to the system message, and a
    later call has the same bytes at the same place."""
    decided = Decided(step=1, state=GuidanceState(), items=(LESSON, OTHER))
    settings, target = InjectionSettings(), GuidanceTarget()

    def sent(history: list[dict[str, Any]], decision: Decided) -> tuple[Any, GuidanceState]:
        body = {"model": "m", "system": "Work.", "messages": history}
        request = SteeredRequest(json.dumps(body).encode(), dict(body), dialect)
        view = AsMappings(dialect.placeable(request))
        placed = place(view, decision, target=target, settings=settings)
        assert sum(isinstance(edit, AppendToResult) for edit in placed.edits) == 1
        edited = json.loads(request.render(dialect.splices(request, placed.edits)))
        assert edited == dialect.edited(request, placed.edits)
        return edited, from_json(to_json(placed.state))

    first, state = sent(messages, decided)
    result = json.dumps(first["messages"][-1])
    assert LESSON.text in result
    assert OTHER.text not in result
    assert OTHER.text in json.dumps([first.get("system"), first["messages"][0]])
    later = [*messages, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "?"}]
    again, _ = sent(later, Decided(step=2, state=state))
    assert again["messages"][: len(messages)] == first["messages"]


def test_a_lesson_without_a_result_goes_with_the_other_guidance() -> None:
    """A history that was cut, or whose newest message is the user's, gets no text in a result."""
    decided = Decided(step=1, state=GuidanceState(), items=(LESSON,))
    placed = place(
        CHAT_MESSAGES[:2], decided, target=GuidanceTarget(), settings=InjectionSettings()
    )
    assert [injection.place for injection in placed.added] == ["system"]
    behind = place(CHAT_MESSAGES, decided, target=GuidanceTarget(), settings=InjectionSettings())
    cut = place(
        CHAT_MESSAGES[:2],
        Decided(step=2, state=behind.state),
        target=GuidanceTarget(),
        settings=InjectionSettings(),
    )
    assert not any(isinstance(edit, AppendToResult) for edit in cut.edits)
