"""Alerts and their delivery, as stores keep them."""

from collections.abc import Mapping
from typing import Any

from gateway.stores.severity import SEVERITY_WORDS, Severity, SeverityWord
from gateway.values import Value


class AlertRecord(Value):
    """One alert."""

    id: str  # unique; orders alerts by age
    key: str  # rule and subject; a key that is seen again is the same alert
    rule: str  # name of the condition
    severity: Severity  # an alias of `severity_word`: low, warn or danger
    title: str  # one line for people
    raised_at: float  # epoch seconds at which its condition was first seen
    tenant: str | None = None  # None: it concerns the gateway as a whole
    facts: Mapping[str, Any] = {}  # names and numbers; never texts of a conversation
    path: str = ""  # page about it, `/dashboard/...`; "" without one
    # what alerts about one trouble share: id of the session, or of what else it is about
    thread: str = ""
    update_of: str = ""  # id of the alert that opened the thread; "" for that one

    @property
    def opener(self) -> str:
        """Id of the alert that opened the thread."""
        return self.update_of or self.id

    @property
    def severity_word(self) -> SeverityWord:
        """The severity as it leaves the gateway."""
        return SEVERITY_WORDS[self.severity]


class QueuedAlert(Value):
    """One alert that is to be sent to one receiver."""

    alert: AlertRecord  # as it is sent
    sink: str  # name of the receiver in the config
    attempts: int = 0  # those that have failed so far
    message: str = ""  # the receiver's id of the message that says it already; "" for none


class DeliveryState(Value):
    """Progress of the delivery to one receiver."""

    sink: str  # name of the receiver in the config
    attempts: int  # made so far, failed ones too
    next_at: float  # epoch seconds of the next attempt
    done_at: float | None  # epoch seconds when it was sent or given up; None until then
    error: str  # of the latest attempt; "" when that succeeded


class StoredAlert(Value):
    """An alert with its deliveries."""

    alert: AlertRecord  # as it was raised
    seen_at: float  # epoch seconds at which its condition was last seen
    deliveries: tuple[DeliveryState, ...]  # one for each receiver, by name


class Settled(Value):
    """The result of one attempt."""

    alert_id: str  # the alert that was to be sent
    sink: str  # name of the receiver in the config
    done: bool  # sent or given up; else it is tried again
    next_at: float  # epoch seconds of the next attempt, where it is tried again
    error: str = ""  # why it failed; "" when it did not
    message: str = ""  # the receiver's id of the message that has it, where that can be changed
