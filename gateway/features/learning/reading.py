"""Calls of a run as learning reads them, and the commands and arguments in them. Pure."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from gateway.core.step import Action, Step
from gateway.steering.evidence.failure_keys import CallReading, read_action
from gateway.values import Fields, frozen

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

    @property
    def works(self) -> bool:
        """Whether it neither failed nor waits."""
        return self.reading.failure is None and not self.reading.transient


def read_run(steps: Sequence[Step]) -> list[ReadCallOfRun]:
    """Every call of a run with its result, in order."""
    return [
        ReadCallOfRun(step=step.index, action=action, reading=read_action(action))
        for step in steps
        for action in step.actions
    ]


def command_of(arguments: str) -> str | None:
    """The shell command in a call's arguments, None where there is none."""
    values = parse(arguments)
    if values is None:
        if arguments and arguments[0] not in "{[":
            return arguments
        return None
    for key in ("command", "cmd", "script", "code", "input", "commandline"):
        value = values.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            parts = [str(part) for part in value]
            if len(parts) == 3 and parts[1] in ("-c", "-lc"):
                return parts[2]
            return " ".join(parts)
    return None


def parse(arguments: str) -> Fields | None:
    """The arguments as a JSON object, None for anything else."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if isinstance(values, Mapping):
        return values
    return None


_COMMAND = re.compile(
    r"(?:^|&&|\|\||;|\n|\|)[^\S\n]*+(?:(?:\w+=[^\s;&|]*|command|env|exec|nohup|time)\s++){0,8}"
    r"((?:\./)?[a-z][\w.+-]{0,19})(?:\s++([a-z][\w:-]{1,23}))?(?=\s|$)"
)
_QUOTED = re.compile(r"<<.*|'[^']*'?|\"[^\"]*\"?", re.DOTALL)
PASSED = frozenset(
    (
        "cat",
        "cd",
        "command",
        "echo",
        "env",
        "exec",
        "export",
        "grep",
        "head",
        "ls",
        "nohup",
        "set",
        "sleep",
        "source",
        "tail",
        "time",
        "true",
    )
)


def program_of(command: str) -> str:
    """The last program of a shell command with its sub-command; "" for none that can be shown."""
    found = _COMMAND.findall(_QUOTED.sub("_", command))
    shown = [f"{name} {sub}".strip() for name, sub in found if name not in PASSED]
    if shown:
        return shown[-1]
    return ""


def digest(text: str) -> str:
    """Sixteen hexadecimal digits for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
