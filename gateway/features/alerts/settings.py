"""Settings of alerts and their receivers."""

import re
from typing import TYPE_CHECKING, ClassVar, Literal

from gateway.config.values import Secret, above_zero, at_least, http_url
from gateway.core.plugins import plugins
from gateway.values import frozen

# Subjects of alerts; `gateway.features.alerts.rules.RULES` has the rule of each.
RuleName = Literal[
    "run_stuck",
    "trouble",
    "hand_over",
    "run_stopped",
    "approval_asked",
    "budget",
    "deployment_resting",
    "store_degraded",
    "weekly_report",
    "prompt_changes",
    # Rules of earlier versions, which the list of a receiver may still name.
    "cached_share",
    "error_rate",
    "unsteered",
]
SINKS = ("webhook", "slack", "discord", "apprise")
# Entry points of other packages: each names what makes a message, as in `KINDS`.
SINK_PLUGINS = plugins("steering_gateway.sinks", SINKS)
if TYPE_CHECKING:
    SinkKind = str
else:
    SinkKind = Literal[(*SINKS, *(each.name for each in SINK_PLUGINS))]
"""Kinds of receivers; `gateway.features.alerts.sender.KINDS` has the message of each."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@frozen
class AlertSink:
    """One receiver; logs, metrics and pages never show its URL, which may hold a secret."""

    name: str  # how logs, metrics and pages call it
    url: Secret  # where the message is sent with POST
    kind: "SinkKind" = "webhook"  # form of the message: one of SINKS, or a plugin's name
    # signs what a webhook is sent (docs/alerts.md); None = no signature
    secret: Secret | None = None
    rules: tuple[RuleName, ...] = ()  # whose alerts it gets; empty = all

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: must be 1 to 40 letters, digits, dots, hyphens or underscores")
        if self.kind != "apprise":
            http_url(self.url, "url")
        elif "://" not in self.url:
            raise ValueError("url: must be an address of Apprise, such as mailto://HOST?to=PERSON")
        if self.secret is not None and self.kind != "webhook":
            raise ValueError(f"secret: {self.kind} checks no signature; leave it out")

    @property
    def by_mail(self) -> bool:
        """Whether it is sent as e-mail, which readers show by thread."""
        return self.kind == "apprise" and self.url.startswith(("mailto:", "mailtos:"))

    @property
    def edits(self) -> bool:
        """Whether a message is changed when more follows in its thread."""
        return self.kind == "discord"

    @property
    def holds(self) -> bool:
        """Whether what follows in a thread waits for its end: the form has no thread."""
        return self.kind not in ("webhook", "discord") and not self.by_mail


@frozen
class AlertRuleSettings:
    """Thresholds of the rules; null switches a rule off."""

    # steps in a row, up to the newest, at which a monitor other than call_count fired; None = off
    run_stuck: int | None = 5
    # a failure goes on in spite of advice, and nobody is asked, and no work is handed over or ended
    trouble: bool = True
    hand_over: bool = True  # a run was asked to hand over, or goes on after it was
    run_stopped: bool = True  # a run was stopped: by a budget, an operator or control.on_trouble
    approval_asked: bool = True  # a person is asked whether a run may go on
    budget: tuple[float, ...] = (0.5, 0.8, 1.0)  # shares of a budget; [] = off
    deployment_resting: bool = True  # a deployment failed too often and is not used for a while
    store_degraded: bool = True  # the store cannot be used
    # a client's prompt begins otherwise at five calls in a row: its provider's cache is of no use
    prompt_changes: bool = True
    # the report of the last week: its main lines and a link, on Monday after 06:00 UTC
    weekly_report: bool = False

    def __post_init__(self) -> None:
        if self.run_stuck is not None:
            at_least(self, 1, "run_stuck")
        if any(not 0 < share <= 10 for share in self.budget):
            raise ValueError("budget: each share must be above 0 and at most 10")


@frozen
class AlertSettings:
    """Alerts, their receivers and their pace: none without a sink."""

    # commands that only read the database go without this section
    NAMES_KEYS: ClassVar = True
    sinks: tuple[AlertSink, ...] = ()  # receivers, in the form above
    # thresholds of what is reported
    rules: AlertRuleSettings = AlertRuleSettings()
    # the gateway's address for readers of alerts, for links: https://gateway.example.com; None =
    # the one at which an operator who has logged in saw the dashboard last, else that of `server`
    base_url: str | None = None
    with_task: bool = False  # whether messages quote the beginning of a run's task
    check_interval_s: float = 5  # time between two looks at the rules; seconds
    # a condition is reported again after it was absent for this long; seconds
    cooldown_s: float = 1800
    group_wait_s: float = 10  # alerts within this time make one message; seconds, 0 = each its own
    max_group: int = 20  # most alerts in one message
    # HH:MM in local time at which each receiver gets one message with everything that is not in
    # trouble: "07:00"; empty = no digest, and everything is sent at once
    digest_at: str = ""
    # HH:MM-HH:MM in local time, in which alerts wait: "22:00-07:00"; empty = none
    quiet_hours: str = ""
    # what is sent in the quiet hours, too
    quiet_rules: tuple[RuleName, ...] = ("budget", "store_degraded", "approval_asked")
    timeout_s: float = 10  # longest wait for a receiver; seconds
    retry_s: float = 5  # pause after a failed attempt, doubled for each further one; seconds
    max_retry_s: float = 600  # longest pause; seconds
    give_up_s: float = 86_400  # how long an alert is tried; seconds
    keep_days: float = 30  # how long alerts are listed; days

    def __post_init__(self) -> None:
        names = [sink.name for sink in self.sinks]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"sinks: two are named {twice!r}")
        if self.base_url is not None:
            http_url(self.base_url, "base_url")
        if self.quiet_hours and not _HOURS.fullmatch(self.quiet_hours):
            raise ValueError(f"quiet_hours: {self.quiet_hours!r} is not like 22:00-07:00")
        if self.digest_at and not _TIME.fullmatch(self.digest_at):
            raise ValueError(f"digest_at: {self.digest_at!r} is not like 07:00")
        above_zero(self, "check_interval_s", "timeout_s", "retry_s", "max_retry_s", "keep_days")
        at_least(self, 0, "cooldown_s", "group_wait_s", "give_up_s")
        at_least(self, 1, "max_group")

    def quiet_minutes(self) -> tuple[int, int] | None:
        """Begin and end of the quiet hours in minutes of the day; None when there are none."""
        if not self.quiet_hours:
            return None
        begin_h, begin_m, end_h, end_m = map(int, re.split("[:-]", self.quiet_hours))
        return begin_h * 60 + begin_m, end_h * 60 + end_m

    def sinks_of(self, rule: str) -> tuple[str, ...]:
        """The names of the sinks that get the alerts of `rule`."""
        return tuple(sink.name for sink in self.sinks if not sink.rules or rule in sink.rules)
