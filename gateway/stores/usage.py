"""Sums of calls and runs: by time, by groups of runs, and over a tree of conversations."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Literal

from gateway.stores.totals import plus
from gateway.values import Value, frozen

# Keys by which runs can be grouped, in addition to `tag:NAME`.
_GROUPS = "tenant key agent model day week experiment arm mode outcome state"
GROUPS = tuple(_GROUPS.split())
TAG = "tag:"


@frozen
class Sums:
    """Sums over runs."""

    runs: int = 0  # live ones; imported runs are in no sum
    calls: int = 0  # sent upstream
    errors: int = 0  # answers of status 400 and above, and incomplete ones
    input_tokens: int = 0  # with cached and cache-write tokens
    cached_tokens: int = 0  # of the input, read from the provider's cache
    cache_write_tokens: int = 0  # of the input, written into the provider's cache
    output_tokens: int = 0  # with those of reasoning
    reasoning_tokens: int = 0  # of the output, those that the client does not see
    unpriced_calls: int = 0  # of unknown price; their cost is in no sum
    cost_usd: float | None = None  # US dollars; None while no call has a known price
    saved_usd: float | None = None  # US dollars, unsteered minus steered; None when unknown
    estimated_calls: int = 0  # of `calls`, those whose usage the provider did not report
    estimated_tokens: int = 0  # the part of the tokens that is estimated
    estimated_usd: float = 0.0  # the part of the cost that is estimated, in US dollars

    @property
    def cached_share(self) -> float:
        """Cached of all input tokens, in [0, 1]."""
        if self.input_tokens:
            return self.cached_tokens / self.input_tokens
        return 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


SUMMED = tuple(field.name for field in fields(Sums) if field.name != "runs")


class Group(Value):
    """The runs with one value of what they are grouped by."""

    value: str  # "" for runs without one
    sums: Sums  # over these runs


# The sums that are counters of a run (`RunTotals.estimated`), and their names there.
ESTIMATED = {"estimated_calls": "calls", "estimated_tokens": "tokens", "estimated_usd": "cost_usd"}


Bucket = Literal["hour", "day", "week"]
Dimension = Literal["model", "agent", "tenant"]
BUCKET_S: Mapping[Bucket, int] = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}
DIMENSIONS: tuple[Dimension, ...] = ("model", "agent", "tenant")
# The first Monday of the epoch, which began on a Thursday.
_MONDAY = 4 * 86_400

# The counts of a UsagePoint that calls and steps add to.
SUMS = (
    "calls",
    "errors",
    "unsteered",
    "unpriced_calls",
    "steps",
    "alarms",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "estimated_calls",
    "estimated_tokens",
)
AMOUNTS = ("latency_s", "estimated_usd")  # the same, of what is no whole number
_ADDED = (*SUMS, *AMOUNTS, "runs", "successes", "failures")


def tag_of(by: str) -> str:
    """The name of the tag that `by` stands for; empty for another dimension."""
    if by.startswith(TAG):
        return by.removeprefix(TAG)
    return ""


def bucket_start(at: float, bucket: Bucket) -> int:
    """The beginning of the hour, day or week (from Monday, UTC) that `at` is in."""
    offset = _MONDAY if bucket == "week" else 0
    return int((at - offset) // BUCKET_S[bucket]) * BUCKET_S[bucket] + offset


def bucket_sql(hour: str, bucket: Bucket) -> str:
    """The same of an integer expression in SQL that is the beginning of an hour."""
    if bucket == "hour":
        return hour
    offset = _MONDAY if bucket == "week" else 0
    return f"{hour} - ({hour} - {offset}) % {BUCKET_S[bucket]}"


@frozen
class UsageQuery:
    """Filter of calls, which are kept by the hour."""

    since: float  # epoch seconds: at or after; best the beginning of a bucket
    until: float  # epoch seconds: before; best the beginning of a bucket
    bucket: Bucket = "day"  # length of the time that one point sums
    by: str | None = None  # a Dimension, or a tag (`tag:team`); None: all calls together
    tenant: str | None = None  # None = every tenant's
    model: str | None = None  # asked; None = any
    agent: str | None = None  # name of the client's program; None = any


@frozen
class UsagePoint:
    """The calls of one bucket, and of one model, agent or tenant where that was asked for. Calls
    count where they were made and under the model that was asked; runs count where they
    began, under the model requested last."""

    start: int  # epoch seconds of the bucket's beginning
    name: str = ""  # of the model, agent or tenant; "" for all together
    calls: int = 0  # sent upstream
    errors: int = 0  # answers of status 400 and above, and incomplete ones
    unsteered: int = 0  # calls without a decision
    unpriced_calls: int = 0  # of unknown price; their cost is in no sum
    steps: int = 0  # scored ones
    alarms: int = 0  # scored steps at which a monitor fired
    input_tokens: int = 0  # with cached tokens
    cached_tokens: int = 0  # of the input, read from the provider's cache
    output_tokens: int = 0  # with those of reasoning
    estimated_calls: int = 0  # of `calls`, those whose usage the provider did not report
    estimated_tokens: int = 0  # the part of the tokens that is estimated
    cost_usd: float | None = None  # US dollars; None: unknown for all
    estimated_usd: float = 0.0  # the part of the cost that is estimated, in US dollars
    latency_s: float = 0.0  # seconds, summed over the calls
    runs: int = 0  # begun in the bucket
    successes: int = 0  # of these runs, with outcome success
    failures: int = 0  # of these runs, with outcome failure

    def plus(self, other: "UsagePoint") -> "UsagePoint":
        """The sums of both, under this one's start and name."""
        added = {name: getattr(self, name) + getattr(other, name) for name in _ADDED}
        return replace(self, cost_usd=plus(self.cost_usd, other.cost_usd), **added)

    @property
    def tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def success_rate(self) -> float | None:
        """Of the runs with an outcome; None where there is none."""
        judged = self.successes + self.failures
        if judged:
            return self.successes / judged
        return None

    @property
    def cached_share(self) -> float | None:
        """Share of the input tokens that were cached; None without input tokens."""
        if self.input_tokens:
            return self.cached_tokens / self.input_tokens
        return None

    @property
    def mean_latency_s(self) -> float | None:
        """Per call; None without a call."""
        if self.calls:
            return self.latency_s / self.calls
        return None
