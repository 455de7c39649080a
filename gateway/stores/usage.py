"""Sums of calls and runs: by time, by groups of runs, and over a tree of conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from msgspec import Struct

from gateway.stores.totals import plus

# Keys by which runs can be grouped, in addition to `tag:NAME`.
GROUPS = ("tenant", "key", "agent", "model", "day", "experiment", "arm", "mode", "outcome", "state")
TAG = "tag:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over runs; `cost_usd` None while no call has a known price. `estimated_...`: the part of
    calls, tokens and cost that is estimated, because the provider reported no usage."""

    runs: int = 0
    calls: int = 0
    errors: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    unpriced_calls: int = 0
    cost_usd: float | None = None
    saved_usd: float | None = None
    estimated_calls: int = 0
    estimated_tokens: int = 0
    estimated_usd: float = 0.0

    @property
    def cached_share(self) -> float:
        """Cached of all input tokens, in [0, 1]."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


SUMMED = tuple(field.name for field in fields(Sums) if field.name != "runs")


def sums_of(row: Sequence[Any]) -> Sums:
    """From a row of the number of runs, and the columns SUMMED."""
    return Sums(runs=row[0], **dict(zip(SUMMED, row[1:], strict=True)))


def added(parts: Sequence[Sums]) -> Sums:
    """The sums together; one that no part knows stays unknown."""

    def total(name: str) -> Any:
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        return sum(known) if known else None

    return Sums(runs=sum(part.runs for part in parts), **{name: total(name) for name in SUMMED})


class TreeNode(Struct, frozen=True, kw_only=True):
    """One conversation of a tree with the sums over its own runs; `parent_id` None: the root."""

    id: str
    parent_id: str | None
    external_key: str | None
    created_at: float
    updated_at: float
    sums: Sums


class Tree(Struct, frozen=True, kw_only=True):
    """A conversation with its forks and sub-agents: oldest first, and all of it together."""

    root_id: str
    nodes: tuple[TreeNode, ...]
    total: Sums


class Group(Struct, frozen=True, kw_only=True):
    """The runs with one value of what they are grouped by; "" for those without one."""

    value: str
    sums: Sums


# The sums that are counters of a run (`RunTotals.estimated`), and their names there.
ESTIMATED = {"estimated_calls": "calls", "estimated_tokens": "tokens", "estimated_usd": "cost_usd"}


Bucket = Literal["hour", "day", "week"]
Dimension = Literal["model", "agent", "tenant"]
BUCKET_S: Final[Mapping[Bucket, int]] = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}
DIMENSIONS: Final[tuple[Dimension, ...]] = ("model", "agent", "tenant")
# The first Monday of the epoch, which began on a Thursday.
_MONDAY: Final = 4 * 86_400

# The counts of a UsagePoint that calls and steps add to.
SUMS: Final = (
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
AMOUNTS: Final = ("latency_s", "estimated_usd")  # the same, of what is no whole number
_ADDED: Final = (*SUMS, *AMOUNTS, "runs", "successes", "failures")


def tag_of(by: str) -> str:
    """The name of the tag that `by` stands for; empty for another dimension."""
    return by.removeprefix(TAG) if by.startswith(TAG) else ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Filter of calls at or after `since` and before `until`, best the beginnings of buckets: calls
    are kept by the hour. `by`: a Dimension, or a tag (`tag:team`); None: all calls together."""

    since: float
    until: float
    bucket: Bucket = "day"
    by: str | None = None
    tenant: str | None = None
    model: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePoint:
    """The calls of one bucket, and of one model, agent or tenant where that was asked for. Calls,
    tokens, `cost_usd` (None: unknown for all) and `latency_s` (their sum) count where the call was
    made, and under the model that was asked. `estimated_...`: the part that is estimated. `alarms`:
    scored steps at which a monitor fired. `runs`, `successes` and `failures` count where the run
    began, and under the model requested last."""

    start: int
    name: str = ""
    calls: int = 0
    errors: int = 0
    unsteered: int = 0
    unpriced_calls: int = 0
    steps: int = 0
    alarms: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated_calls: int = 0
    estimated_tokens: int = 0
    cost_usd: float | None = None
    estimated_usd: float = 0.0
    latency_s: float = 0.0
    runs: int = 0
    successes: int = 0
    failures: int = 0

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
        return self.successes / judged if judged else None

    @property
    def cached_share(self) -> float | None:
        """Of the input tokens; None where there are none."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None

    @property
    def mean_latency_s(self) -> float | None:
        """Per call; None without a call."""
        return self.latency_s / self.calls if self.calls else None


def merged(
    usage: Mapping[tuple[int, str], Mapping[str, Any]],
    outcomes: Mapping[tuple[int, str], Mapping[str, Any]],
) -> list[UsagePoint]:
    """The points of sums over calls and over runs, both by (start, name); in order of time."""
    return [
        UsagePoint(start=key[0], name=key[1], **usage.get(key, {}), **outcomes.get(key, {}))
        for key in sorted({*usage, *outcomes})
    ]
