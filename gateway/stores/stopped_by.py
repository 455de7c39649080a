"""The person, the limit or the setting that stopped a run, and the command that lets it go on."""

import shlex
from collections.abc import Sequence

from gateway.config.load import CHOSEN_CONFIG
from gateway.errors import ON_TROUBLE, UNANSWERED, BudgetExceeded
from gateway.stores.controls import GATEWAY
from gateway.values import Value


class Stop(Value):
    """A run that is held."""

    action: str  # stop, pause or ask
    by: str  # one of STOPPERS
    why: str  # for people
    name: str = ""  # of the budget, or of the person where known
    at: float = 0.0  # epoch seconds of the hold, or of the refused call
    go_on: str = ""  # command that lets the run go on

    @property
    def words(self) -> str:
        """Returns the stop in words: `stopped by budget per-task`, `paused by the operator
        (ann)`."""
        if self.action == "ask":
            return "waiting for an answer"
        done = "stopped"
        if self.action == "pause":
            done = "paused"
        if self.by == "budget" and self.name:
            return f"{done} by budget {self.name}"
        return f"{done} by {STOPPERS[self.by]}{f' ({self.name})' if self.name else ''}"


STOPPERS = {
    "operator": "the operator",
    "budget": "a budget",
    "on_trouble": ON_TROUBLE.removesuffix(": "),
    "ask": UNANSWERED.removesuffix(": "),
}
_OWN = {words: by for by, words in STOPPERS.items()}  # the settings among them begin the reason
RAISE_IT = " Raise it: "  # in a stored reason, before the command: no answer to a client has it


def as_command(*words: str) -> str:
    """A command of the gateway that can be pasted into a shell."""
    return shlex.join(["gateway", *words, *CHOSEN_CONFIG])


def held(action: str, at: float, subject: str, author: str, why: str) -> Stop:
    """The stop of a run on which there is a hold. No person can state the name GATEWAY; the reason
    alone, which may begin as it likes, tells nothing."""
    by = "operator"
    if author == GATEWAY:
        author = ""
        setting, _, rest = why.partition(": ")
        if setting in _OWN:
            by = _OWN[setting]
            why = rest
    verb = "resume"
    if action == "ask":
        verb = "approve"
    go_on = as_command("runs", verb, subject)
    return Stop(action=action, by=by, why=why, name=author, at=at, go_on=go_on)


def stop_of(error: str | None, reasons: Sequence[str], at: float) -> Stop | None:
    """Returns the stop by a budget that refused the newest call of a run, at this time; None if
    the call was sent, or met a hold (which is stored as long as it is in force)."""
    if error != BudgetExceeded.label:
        return None
    why = next((r for r in reversed(reasons) if r.startswith(f"{error}: ")), "")
    why, _, command = why.removeprefix(f"{error}: ").partition(RAISE_IT)
    name = command.split()[3] if command else ""
    return Stop(action="stop", by="budget", why=why, name=name, at=at, go_on=command)
