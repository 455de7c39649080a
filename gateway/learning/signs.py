"""The text by which failures and lessons are compared: the situation, never the advice. Pure."""

from __future__ import annotations

from gateway.learning.mining import SIGNS
from gateway.steering.evidence.failure_keys import KIND_WORDS, Failure
from gateway.steering.guidance.pattern import Pattern


def signs_of(failure: Failure) -> str:
    """Tool, kind and words of a failure."""
    return f"{failure.head} {KIND_WORDS[failure.kind]} {failure.words}"


def lesson_signs(pattern: Pattern) -> str:
    """The same of the failure that a lesson is about."""
    lesson = pattern.lesson
    marks = {} if lesson is None else lesson.applies_when
    words = KIND_WORDS.get(marks.get("kind", ""), "")
    return f"{marks.get('head', '')} {words} {marks.get(SIGNS, '')}"
