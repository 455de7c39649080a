"""What answers the look-ups of a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.steering.guidance.lessons import LessonMatch, LessonQuery
from gateway.steering.guidance.pattern import Query
from gateway.steering.guidance.settings import Gates
from gateway.steering.steer import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUps:
    """What answers a replay's look-ups, and the similarity that an injection needs there.

    `lessons`: those that fit failures; nothing where no lessons are known.
    """

    look_up: Callable[[Sequence[Query]], Found]
    gates: Gates
    lessons: Callable[[LessonQuery], Sequence[LessonMatch]] = lambda query: ()
