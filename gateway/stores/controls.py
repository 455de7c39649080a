"""Holds on runs, on the steering and on kinds of alarms, as stores keep them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import quote

from msgspec import MsgspecError, json

from gateway.config.load import CHOSEN_CONFIG
from gateway.errors import ON_TROUBLE, UNANSWERED, BudgetExceeded
from gateway.values import Value

Action = Literal["stop", "pause", "ask", "off", "mute"]
GATEWAY = "gateway"  # the author of what no person did
STEERING = "steering"  # the subject of the hold that switches guidance and routing off everywhere


def alarm_subject(tenant: str, project: str, monitor: str) -> str:
    """The subject of the hold that mutes one kind of alarm in a project of a tenant."""
    return "/".join(["alarm", *[quote(part, safe="") for part in (tenant, project, monitor)]])


class OpenQuestion(Value):
    """A question to a person about a run."""

    secret: str  # signs the links by which it is answered
    until: float  # epoch seconds; after that no answer counts
    budget: str = ""  # name of the budget that is nearly used; "" for a run in trouble
    account: str = ""  # subject of that budget
    limits: Mapping[str, float] = {}  # a yes raises the account's limits to these, by metric


class Control(Value):
    """A hold on a run, a conversation with all below it, the steering, or a kind of alarm."""

    subject: str  # run id, conversation id, STEERING, or `alarm_subject` of a kind of alarm
    tenant: str  # owner of the subject
    action: Action  # stop, pause and ask hold runs; off holds the steering; mute an alarm
    reason: str = ""  # for people; shown to the client that is held
    at: float = 0.0  # epoch seconds of the order
    author: str = ""  # who ordered it; GATEWAY: it did itself; "" when unknown
    about: str = ""  # the question of an `ask` as JSON, which a stop after it keeps

    @property
    def question(self) -> OpenQuestion | None:
        """Returns the question to a person; None if the hold asks none."""
        try:
            if self.about:
                return json.decode(self.about, type=OpenQuestion)
            return None
        except MsgspecError:
            return None


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
    go_on = as_command("runs", "resume", subject)
    if action == "ask":
        go_on = go_on.replace("resume", "approve", 1)
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
