"""Answers about short texts that recur: names of tools, keys of arguments."""

from collections.abc import Callable

from gateway.values import T

# A longer text is not remembered: clients choose these names, and must not fill the memory.
MAX_CHARS = 64
MAX_TEXTS = 1024  # texts that are remembered; then all are forgotten


def remembered(function: Callable[[str], T]) -> Callable[[str], T]:
    """A pure function of a text that answers from memory for the short texts it met lately. A known
    text costs one look-up in a dictionary, and no call of Python."""

    class Answers(dict[str, T]):
        def __missing__(self, text: str) -> T:
            answer = function(text)
            if len(text) <= MAX_CHARS:
                if len(self) >= MAX_TEXTS:
                    self.clear()
                self[text] = answer
            return answer

    return Answers().__getitem__
