"""Holds on runs, on the steering and on kinds of alarms, as stores keep them."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from msgspec import MsgspecError, json

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
