"""Settings of monitoring: alerts and their receivers, labels of metrics, texts in spans."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gateway.config.values import Secret, at_least, http_url
from gateway.steering.plugins import plugins

RuleName = Literal[
    "run_stuck",
    "budget",
    "cached_share",
    "deployment_resting",
    "error_rate",
    "unsteered",
    "store_degraded",
]
"""Subjects of alerts; `gateway.alerts.rules.RULES` has the rule of each."""

SINKS = ("webhook", "slack", "discord")
SINK_PLUGINS = plugins("steering_gateway.sinks", SINKS)
"""Entry points of other packages: each names what makes a message, as in `KINDS`."""
if TYPE_CHECKING:
    SinkKind = str
else:
    SinkKind = Literal[(*SINKS, *(each.name for each in SINK_PLUGINS))]
"""Kinds of receivers; `gateway.alerts.sender.KINDS` has the message of each."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSink:
    """One receiver.

    `name`: how logs, metrics and pages call it; they never show its URL, which may hold a secret.
    `kind`: the form of the message. `secret` signs what a webhook is sent (docs/monitoring.md).
    `rules`: the rules whose alerts it gets; empty = everything.
    """

    name: str
    url: Secret
    kind: SinkKind = "webhook"
    secret: Secret | None = None
    rules: tuple[RuleName, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: must be 1 to 40 letters, digits, dots, hyphens or underscores")
        http_url(self.url, "url")
        if self.secret is not None and self.kind != "webhook":
            raise ValueError(f"secret: {self.kind} checks no signature; leave it out")

    def takes(self, rule: str) -> bool:
        """Whether it gets the alerts of `rule`."""
        return not self.rules or rule in self.rules


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRuleSettings:
    """Thresholds of the rules; null switches a rule off.

    `run_stuck`: steps in a row, up to the newest, at which a monitor other than call_count fired,
    of a run that is under way. `budget`: shares of a budget. `cached_share`: the part of
    yesterday's cached share of the input tokens that is left in the window. `error_rate` and
    `unsteered`: shares of the calls in the window. `window_s`, `min_calls`: the window of these
    three, and how many calls it must have.
    """

    run_stuck: int | None = 5
    budget: tuple[float, ...] = (0.5, 0.8, 1.0)
    cached_share: float | None = 0.5
    deployment_resting: bool = True
    error_rate: float | None = 0.2
    unsteered: float | None = 0.05
    store_degraded: bool = True
    window_s: float = 600
    min_calls: int = 20

    def __post_init__(self) -> None:
        if self.run_stuck is not None:
            at_least(self.run_stuck, 1, "run_stuck")
        for name in ("cached_share", "error_rate", "unsteered"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name}: must be above 0 and at most 1, got {value:g}")
        if any(not 0 < share <= 10 for share in self.budget):
            raise ValueError("budget: each share must be above 0 and at most 10")
        if self.window_s <= 0:
            raise ValueError("window_s: must be above 0")
        at_least(self.min_calls, 1, "min_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """Alerts: none without a sink.

    `base_url`: the gateway's address as the readers of alerts reach it, for links; null = none.
    `with_task`: whether messages quote the beginning of a run's task. `cooldown_s`: a condition is
    reported again after it was absent for so long. `group_wait_s`: how long a message waits for
    further alerts to the same sink. `quiet_hours`: HH:MM-HH:MM in the machine's local time, in
    which only `quiet_rules` are sent; the others follow afterwards. `retry_s` is doubled for each
    further attempt, up to `max_retry_s`; `give_up_s`: for how long it is tried.
    """

    sinks: tuple[AlertSink, ...] = ()
    rules: AlertRuleSettings = field(default_factory=AlertRuleSettings)
    base_url: str | None = None
    with_task: bool = False
    check_interval_s: float = 5
    cooldown_s: float = 1800
    group_wait_s: float = 10
    max_group: int = 20
    quiet_hours: str = ""
    quiet_rules: tuple[RuleName, ...] = ("budget", "store_degraded")
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
        for name in ("check_interval_s", "timeout_s", "retry_s", "max_retry_s", "keep_days"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0")
        for name in ("cooldown_s", "group_wait_s", "give_up_s"):
            at_least(getattr(self, name), 0, name)
        at_least(self.max_group, 1, "max_group")

    def quiet_minutes(self) -> tuple[int, int] | None:
        """Begin and end of the quiet hours in minutes of the day; None when there are none."""
        found = _HOURS.fullmatch(self.quiet_hours)
        if found is None:
            return None
        begin_h, begin_m, end_h, end_m = map(int, found.groups())
        return begin_h * 60 + begin_m, end_h * 60 + end_m

    def sinks_of(self, rule: str) -> tuple[str, ...]:
        """The names of the sinks that get the alerts of `rule`."""
        return tuple(sink.name for sink in self.sinks if sink.takes(rule))


_TAG = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilitySettings:
    """Labels of metrics.

    `metric_tags`: tags of runs (`x-gateway-tag-NAME`) that are labels of `gateway_tagged_*`; each
    combination of values is a time series. `metric_tag_values`: most values of one tag; further
    ones count as `other`.
    """

    metric_tags: tuple[str, ...] = ()
    metric_tag_values: int = 100

    def __post_init__(self) -> None:
        for tag in self.metric_tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(f"metric_tags: {tag!r} is no name of a tag in lower case")
        if len(set(self.metric_tags)) < len(self.metric_tags):
            raise ValueError("metric_tags: a tag is named twice")
        at_least(self.metric_tag_values, 1, "metric_tag_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """Contents of the spans of model calls, besides numbers and names.

    `content`: whether they hold the texts of the newest messages and of the answer, each cut to
    `max_chars` characters.
    """

    content: bool = False
    max_chars: int = 4000

    def __post_init__(self) -> None:
        at_least(self.max_chars, 1, "max_chars")
