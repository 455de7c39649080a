"""Calls of a run as learning reads them, and the programs in them. Pure."""

import re
from collections.abc import Sequence
from hashlib import sha256

from gateway.core.step import Action, Step
from gateway.features.learning.gate import vocabulary
from gateway.steering.evidence.failure_keys import CallReading, read_action
from gateway.values import frozen

WINDOW_CALLS = 6  # calls after a failure among which its fix is looked for. Source: `learning.md`


@frozen
class ReadCallOfRun:
    """One call of a run, read."""

    step: int  # index of its step
    action: Action  # as it stands in the transcript
    reading: CallReading  # what learning reads of it

    @property
    def key(self) -> str | None:
        """The key of its failure; None for a call that did not fail."""
        if self.reading.failure:
            return self.reading.failure.key
        return None


def read_run(steps: Sequence[Step]) -> list[ReadCallOfRun]:
    """Every call of a run with its result, in order."""
    return [
        ReadCallOfRun(step=step.index, action=action, reading=read_action(action))
        for step in steps
        for action in step.actions
    ]


_COMMAND = re.compile(
    r"(?:^|&&|\|\||;|\n|\|)[^\S\n]*+(?:(?:\w+=[^\s;&|]*|command|env|exec|nohup|time)\s++){0,8}"
    r"((?:\./)?[a-z][\w.+-]{0,19})(?:\s++([a-z][\w:-]{1,23}))?(?=\s|$)"
)
_QUOTED = re.compile(r"<<.*|'[^']*'?|\"[^\"]*\"?", re.DOTALL)


def program_of(command: str) -> str:
    """The last program of a shell command with its sub-command; "" for none that can be shown."""
    found = _COMMAND.findall(_QUOTED.sub("_", command))
    shown = [f"{name} {sub}".strip() for name, sub in found if name not in vocabulary("passed")]
    if shown:
        return shown[-1]
    return ""


def digest(text: str) -> str:
    """Sixteen hexadecimal digits for a text."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
