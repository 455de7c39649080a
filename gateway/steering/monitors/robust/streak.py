"""Streak: the same action again and again, or messages where actions are expected."""

from __future__ import annotations

from collections import deque

from gateway.steering.evidence.features import alike
from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.monitors.settings import RobustSettings

CAP = 5  # repeats that score 1; three fire at the default threshold. Source: reference section 4.1.
COMPARED_TEXTS = 6  # newest messages that the next one is compared with
SAME_TEXT = 0.7  # share of words, in [0, 1], from which two messages are alike
LONG_TEXT_WORDS = 12  # different words from which two alike messages are a monologue
SHORT_TEXT_WORDS = 4  # different words from which the very same message counts
TELLS_NOTHING = 0.5  # share of the recovery after an action whose result has no new word
ASKED_FOR = 0.25  # share of a repeat that counts after a user's message, which may want it
RETOLD = 0.5  # share of known words from which an answer to "go ahead" is the plan once more
RARE_TALK = 0.2  # share of steps without an action below which several in a row are unusual


class Streak:
    """Leaky count of repeats: each adds its strength, any other action lowers the count.

    Cycles of several calls need no special case: from the second round on each call repeats one of
    the last dozen. Messages without an action count when they repeat an earlier one, or when the
    agent has hardly written any before; an answer or a question to the user is a conversation, not
    a monologue."""

    __slots__ = ("_acted", "_level", "_recovery", "_steps", "_talk", "_talks", "_texts", "_what")

    def __init__(self, settings: RobustSettings) -> None:
        self._recovery = settings.recovery
        self._level = 0.0
        self._what = ""
        self._texts: deque[tuple[int, frozenset[str]]] = deque(maxlen=COMPARED_TEXTS)
        # All steps, all messages without an action, and those in a row that asked nothing.
        self._steps = self._talks = self._talk = 0
        self._acted = False

    def push(self, step: ObservedStep) -> None:
        """Count what repeats; anything else lowers the count."""
        if step.actions:
            self._talk = 0
            self._acted = True
            for (action, repeat), tells in zip(step.actions, step.news.tells, strict=True):
                strength, what = repeat.strength, action.operation[:60]
                if step.facts.prompted and not action.answer.negative:
                    strength *= ASKED_FOR
                again = f"{repeat.count} x {what}, same result"
                what = again if repeat.count > 1 else f"{what} brings what is known"
                self._add(strength, what, tells=tells)
        else:
            self._read_message(step)
        self._steps += 1

    def _read_message(self, step: ObservedStep) -> None:
        facts = step.facts
        self._talk = 0 if facts.asks or facts.prompted else self._talk + 1
        self._talks += 1
        words = facts.vocabulary
        echo = len(words) >= SHORT_TEXT_WORDS and any(t == facts.thought for t, _ in self._texts)
        if facts.prompted or (facts.asks and self._acted):
            # One form of answer to different wishes is fine; the very same words again are not.
            echo = echo and not self._acted
        elif len(words) >= LONG_TEXT_WORDS:
            echo = echo or any(alike(words, earlier, SAME_TEXT) for _, earlier in self._texts)
        # Told to begin, it says once more what it would do.
        echo = echo or (facts.cue == "go" and not self._acted and step.retold >= RETOLD)
        self._acted = False
        self._texts.append((facts.thought, words))
        self._add(1.0 if echo else 0.0, "messages without an action that say the same")

    def _add(self, strength: float, what: str, *, tells: bool = True) -> None:
        if strength > 0:
            self._level = min(self._level + strength, float(CAP))
            self._what = what
        else:
            self._level *= self._recovery if tells else 1.0 - (1.0 - self._recovery) * TELLS_NOTHING

    def reading(self) -> tuple[float, str]:
        """min(repeats / 5, 1), decaying once the agent does something else."""
        talk = self._talk
        talk_before = (self._talks - talk + 1) / (self._steps - talk + 2)
        if talk > self._level and talk_before < RARE_TALK:
            return min(talk / CAP, 1.0), f"{talk} messages in a row without an action"
        score = self._level / CAP
        return (score, self._what) if score >= 0.01 else (0.0, "")
