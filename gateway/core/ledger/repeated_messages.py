"""Messages of an agent: finds those that repeat an earlier one."""

from collections import deque

from gateway.core.step import StepFacts, alike
from gateway.values import Value

REMEMBERED_TEXTS = 6  # newest messages that the next one is compared with
SHORT_TEXT_WORDS = 3
LONG_TEXT_WORDS = 12  # words from which equal, and alike, messages count
SAME_TEXT = 0.7  # share of words, in [0, 1], from which two long messages are alike


class _Message(Value):
    """A message of the agent, to notice when it is said again."""

    text: int  # its digest
    words: frozenset[str]  # its vocabulary
    step: int  # at which it was said
    key: str  # of the first message that said the same


class Messages:
    """The newest messages of a run."""

    def __init__(self) -> None:
        self._texts: deque[_Message] = deque(maxlen=REMEMBERED_TEXTS)

    def say(self, facts: StepFacts, step: int) -> tuple[str, int] | None:
        """Remember a message. Returns the key and step of the earlier message that it repeats,
        or None for a new one. Short answers to different requests of a person count as new."""
        words = facts.vocabulary
        long = len(words) >= LONG_TEXT_WORDS
        found = None
        if long or (len(words) >= SHORT_TEXT_WORDS and not facts.prompted):
            for each in self._texts:
                alike_text = long and not facts.prompted and alike(words, each.words, SAME_TEXT)
                if each.text == facts.thought or alike_text:
                    found = each
                    break
        key = f"said {facts.thought}" if found is None else found.key
        self._texts.append(_Message(text=facts.thought, words=words, step=step, key=key))
        return None if found is None else (key, found.step)
