"""Settings of monitoring: alerts and their receivers, labels of metrics, texts in spans."""

import re
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from gateway.config.values import Secret, above_zero, at_least, http_url
from gateway.core.plugins import plugins
from gateway.values import frozen

# Subjects of alerts; `gateway.alerts.rules.RULES` has the rule of each.
RuleName = Literal[
    "run_stuck",
    "hand_over",
    "run_stopped",
    "approval_asked",
    "budget",
    "cached_share",
    "deployment_resting",
    "error_rate",
    "unsteered",
    "store_degraded",
    "weekly_report",
]
SINKS = ("webhook", "slack", "discord", "apprise")
SINK_PLUGINS = plugins("steering_gateway.sinks", SINKS)
"""Entry points of other packages: each names what makes a message, as in `KINDS`."""
if TYPE_CHECKING:
    SinkKind = str
else:
    SinkKind = Literal[(*SINKS, *(each.name for each in SINK_PLUGINS))]
"""Kinds of receivers; `gateway.alerts.sender.KINDS` has the message of each."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@frozen
class AlertSink:
    """One receiver; logs, metrics and pages never show its URL, which may hold a secret. `secret`
    signs what a webhook is sent (docs/monitoring.md)."""

    name: str
    url: Secret
    kind: "SinkKind" = "webhook"
    secret: Secret | None = None
    rules: tuple[RuleName, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: must be 1 to 40 letters, digits, dots, hyphens or underscores")
        if self.kind != "apprise":
            http_url(self.url, "url")
        elif "://" not in self.url:
            raise ValueError("url: must be an address of Apprise, such as mailto://HOST?to=PERSON")
        if self.secret is not None and self.kind != "webhook":
            raise ValueError(f"secret: {self.kind} checks no signature; leave it out")


@frozen
class AlertRuleSettings:
    """Thresholds of the rules; null switches a rule off."""

    run_stuck: int | None = 5
    hand_over: bool = True
    run_stopped: bool = True
    approval_asked: bool = True
    budget: tuple[float, ...] = (0.5, 0.8, 1.0)
    cached_share: float | None = 0.5
    deployment_resting: bool = True
    error_rate: float | None = 0.2
    unsteered: float | None = 0.05
    store_degraded: bool = True
    weekly_report: bool = False
    window_s: float = 600
    min_calls: int = 20

    def __post_init__(self) -> None:
        if self.run_stuck is not None:
            at_least(self, 1, "run_stuck")
        for name in ("cached_share", "error_rate", "unsteered"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name}: must be above 0 and at most 1, got {value:g}")
        if any(not 0 < share <= 10 for share in self.budget):
            raise ValueError("budget: each share must be above 0 and at most 10")
        above_zero(self, "window_s")
        at_least(self, 1, "min_calls")


@frozen
class AlertSettings:
    """Alerts, their receivers and their pace: none without a sink."""

    sinks: tuple[AlertSink, ...] = ()
    rules: AlertRuleSettings = field(default_factory=AlertRuleSettings)
    base_url: str | None = None
    with_task: bool = False
    check_interval_s: float = 5
    cooldown_s: float = 1800
    group_wait_s: float = 10
    max_group: int = 20
    quiet_hours: str = ""
    quiet_rules: tuple[RuleName, ...] = ("budget", "store_degraded", "approval_asked")
    timeout_s: float = 10
    retry_s: float = 5
    max_retry_s: float = 600
    give_up_s: float = 86_400
    keep_days: float = 30

    def __post_init__(self) -> None:
        names = [sink.name for sink in self.sinks]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"sinks: two are named {twice!r}")
        if self.base_url is not None:
            http_url(self.base_url, "base_url")
        if self.quiet_hours and not _HOURS.fullmatch(self.quiet_hours):
            raise ValueError(f"quiet_hours: {self.quiet_hours!r} is not like 22:00-07:00")
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


_TAG = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@frozen
class ObservabilitySettings:
    """Labels of metrics: tags of runs, and most values of one tag."""

    metric_tags: tuple[str, ...] = ()
    metric_tag_values: int = 100

    def __post_init__(self) -> None:
        for tag in self.metric_tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(f"metric_tags: {tag!r} is no name of a tag in lower case")
        if len(set(self.metric_tags)) < len(self.metric_tags):
            raise ValueError("metric_tags: a tag is named twice")
        at_least(self, 1, "metric_tag_values")


@frozen
class OtelSettings:
    """Texts in the spans of model calls, besides numbers and names."""

    content: bool = False
    max_chars: int = 4000

    def __post_init__(self) -> None:
        at_least(self, 1, "max_chars")
