"""Queries of the run log and their results: pages, traces, health, and the runs under way."""

import base64
import binascii
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Any

import msgspec
import orjson
from msgspec import Struct, structs

from gateway.core.fsm import FSMState
from gateway.steering.experiments import ARMS
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.records import IMPORTED, ConversationAbout, InjectionRow, StepRow
from gateway.stores.totals import (
    SEVERITIES,
    STOPPERS,
    CallTotals,
    CountedSteps,
    RunRecord,
    Severity,
    severity_by,
    step_severity,
)
from gateway.values import FieldDict, Fields, Texts, Value, frozen

MAX_PAGE = 1000
OUTCOMES = ("success", "failure", "other")
# Most runs of one health summary: their JSON counters take time to add up, and a store gives up a
# read that takes too long.
HEALTH_RUNS = 20_000
FACET_RUNS = 10_000  # the newest runs whose values are offered as the choices of a filter
UNFINISHED = "unfinished"  # the outcome to filter by for runs without one
LIVE = "live"  # the mode to filter by for all runs but imported ones
STOPPED_BY = (ANY := "yes", *STOPPERS)  # what to filter stopped and paused runs by

MAX_WORDS = 12  # of a search: more are not looked for
LAST_TIME = 253402300799  # the end of the year 9999, the last one of every date library
STATES = tuple(state.value for state in FSMState)
TIMES = ("since", "until")
_MODES = (LIVE, IMPORTED, *ARMS)
_DAY_S = 86400.0
PERIODS = {"hour": 3600.0, "today": _DAY_S, "day": _DAY_S, "week": 7 * _DAY_S, "month": 30 * _DAY_S}
FILTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "search": (
        "Whose task, user messages or errors contain all of these words; a word may be the"
        ' beginning of a longer one, and `"several words"` stand together.',
        (),
    ),
    "severity": ("That came to this at worst.", SEVERITIES),
    "project": ("Of this project: with the tag `project` of this value.", ()),
    "period": (
        "Started in the last hour, since midnight (UTC), or in the last 24 hours, 7 or 30 days.",
        tuple(PERIODS),
    ),
    "conversation_id": ("Of one conversation.", ()),
    "agent": ("Of this client, as its user agent names it.", ()),
    "model": ("That requested this model last, or sent a call to it.", ()),
    "state": ("In this state now, or at any step.", STATES),
    "failure_type": ("With a step of this failure type.", ()),
    "monitor": ("In which this monitor fired.", ()),
    "intervention": ("In which a person stepped in like this.", tuple(KIND_LABELS)),
    "experiment": ("Of this experiment.", ()),
    "arm": ("In this arm.", ARMS),
    "mode": (
        "Steered in this mode, or `imported` from a session log; `live`: all but those. Sums are of"
        " live runs where no mode is given.",
        _MODES,
    ),
    "outcome": ("With this outcome; `unfinished`: none was reported.", (*OUTCOMES, UNFINISHED)),
    "stopped": ("Stopped or paused by this; `yes`: by any of these.", STOPPED_BY),
    "since": ("Started at or after this time.", ()),
    "until": ("Started before this time.", ()),
    "task": ("Whose task contains this text, ignoring case.", ()),
    "key": ("Made with the gateway key of this name.", ()),
    "tag": ("With these tags: `team=web,env`; a name alone is any value.", ()),
}
"""The filters of runs that API, pages, commands and exports have: their description, which goes on
after "Only runs", and the values that one can have if it takes no text or time (TIMES)."""

# The sort keys of a list of runs; an unknown cost sorts below zero.
SORT_KEYS: Mapping[str, Callable[[RunRecord], float]] = {
    "started_at": lambda run: run.started_at,
    "updated_at": lambda run: run.updated_at,
    "duration": lambda run: run.duration_s,
    "steps": lambda run: run.totals.steps,
    "tokens": lambda run: run.totals.input_tokens + run.totals.output_tokens,
    "cost": lambda run: -1.0 if run.totals.cost_usd is None else run.totals.cost_usd,
    "peak": lambda run: run.totals.composite_peak,
}


class RunFilter(Value):
    """Filter of runs; a field of None does not filter. The fields are those of FILTERS."""

    tenant: str | None = None  # owner of the runs
    conversation_id: str | None = None  # exactly this one, without its forks
    agent: str | None = None  # the client's program, as its user agent names it
    model: str | None = None  # requested last, or asked in any call
    state: str | None = None  # now or at any step, by name
    failure_type: str | None = None  # label that any step reported
    monitor: str | None = None  # one that fired at any step
    intervention: str | None = None  # kind of an act of a person
    experiment: str | None = None  # id of the experiment
    arm: str | None = None  # of the experiment
    # on, shadow, off, `imported` from a session log, or `live`: all but those
    mode: str | None = None
    outcome: str | None = None  # success, failure, other; see OUTCOMES
    since: float | None = None  # epoch seconds: started at or after
    until: float | None = None  # epoch seconds: started before
    task: str | None = None  # text that the task contains
    key_name: str | None = None  # name of the gateway key; the filter `key`
    # (name, value) pairs, all of which the run has; value None = any
    tags: tuple[tuple[str, str | None], ...] = ()
    stopped: str | None = None  # who or what holds it, see STOPPED_BY
    severity: str | None = None  # the worst that it came to: low, warn or danger
    search: str | None = None  # words in its texts, see `phrases`

    @property
    def summed(self) -> "RunFilter":
        """The filter for sums: imported runs are in none, unless their mode is asked for."""
        return self if self.mode is not None else structs.replace(self, mode=LIVE)


def run_filter(values: Fields, tenant: str | None) -> RunFilter:
    """The filter that values of FILTERS describe, within `tenant`; empty texts select all."""
    given = {n: v for n in FILTERS if (v := values.get(n)) not in (None, "")}
    tags = read_tag_filter(given.pop("tag", ""))
    if project := given.pop("project", None):
        tags = (*tags, ("project", project))
    if period := given.pop("period", None):
        now = time.time()
        begun = now - now % _DAY_S if period == "today" else now - PERIODS[period]
        given["since"] = max(begun, given.get("since", 0.0))
    given |= {"tenant": tenant, "key_name": given.pop("key", None), "tags": tags}
    return RunFilter(**given)


def read_tag_filter(text: str) -> tuple[tuple[str, str | None], ...]:
    """`team=web,env` as (name, value) pairs; a name alone stands for any value."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return tuple((name.strip().lower(), value.strip() if eq else None) for name, eq, value in pairs)


def read_time(text: str) -> float:
    """Seconds since the epoch, or an ISO 8601 date or time, UTC where it names no zone. Raises:
    ValueError."""
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        # fromisoformat refuses leap seconds, which ISO 8601 allows.
        try:
            at = datetime.fromisoformat(text.upper().replace(":60", ":59"))
            value = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            value = math.nan
    if not 0 <= value <= LAST_TIME:
        raise ValueError("must be seconds since the epoch or like 2026-05-01T09:00:00Z")
    return value


def phrases(search: str) -> list[tuple[list[str], bool]]:
    """A search as phrases that are all to be found: their words, and whether the last one may be
    the beginning of a longer word. `"words in quotes"` are found as they are."""
    found = []
    for quoted, plain in re.findall(r'"([^"]*)"|([^\s"]+)', search):
        if words := re.findall(r"[^\W_]{1,100}", (quoted or plain).lower()):
            found.append((words, bool(plain) and len(words[-1]) > 2))
    return found[:MAX_WORDS]


@frozen
class PageRequest:
    """One page of an ordered list. Raises: ValueError."""

    limit: int = 50  # rows, 1 to 1000
    sort: str = "started_at"  # column that orders the list
    descending: bool = True  # the largest value first
    cursor: str | None = None  # from the page before; None = the first page

    def __post_init__(self) -> None:
        if self.sort not in SORT_KEYS:
            raise ValueError(f"sort: must be one of {', '.join(SORT_KEYS)}, not {self.sort!r}")
        if not 1 <= self.limit <= MAX_PAGE:
            raise ValueError(f"limit: must be from 1 to {MAX_PAGE}, not {self.limit}")

    def after(self) -> tuple[float, str] | None:
        """The (sort value, id) of the row before the page, from the cursor. Raises: ValueError for
        an invalid cursor."""
        return None if self.cursor is None else decode_cursor(self.cursor)

    def cursor_after(self, run: RunRecord) -> str:
        """The cursor of the page that starts after `run`."""
        return encode_cursor(SORT_KEYS[self.sort](run), run.id)


def encode_cursor(value: float, key: str) -> str:
    """A position in an ordered list as opaque text."""
    return base64.urlsafe_b64encode(json.dumps([value, key]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[float, str]:
    """The arguments of `encode_cursor`. Raises: ValueError for any other text."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        return msgspec.json.decode(raw, type=tuple[int | float, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise ValueError("cursor: not one of this server's") from error


class Spread(Value):
    """The spread of runs; a value of None where no run has one."""

    runs: int  # those that were read, at most the newest HEALTH_RUNS
    p50: Mapping[str, float | None]  # median by quantity, see SPREAD
    p95: Mapping[str, float | None]  # 95th percentile by quantity


SPREAD = ("duration_s", "cost_usd", "calls")


def spread(rows: Sequence[Sequence[Any]]) -> Spread:
    """The spread of runs, each the values of SPREAD."""
    known = [sorted([v for v in values if v is not None]) for values in zip(*rows, strict=True)]
    parts = {
        part: {
            n: v[ceil(part * len(v) / 100) - 1] for n, v in zip(SPREAD, known, strict=False) if v
        }
        for part in (50, 95)
    }
    none = dict.fromkeys(SPREAD)
    return Spread(runs=len(rows), p50={**none, **parts[50]}, p95={**none, **parts[95]})


@frozen
class RunPage:
    """One page of a list of runs."""

    runs: tuple[RunRecord, ...]  # in the order that was asked for
    next_cursor: str | None  # None on the last page


class RunTrace(Value):
    """One run with its steps and guidance."""

    run: RunRecord  # description and totals
    steps: tuple[StepRow, ...]  # in their order, from step 0
    injections: tuple[InjectionRow, ...]  # in the order of steps, then of their place in the call


class ConversationSummary(ConversationAbout):
    """One conversation without its state."""

    version: int  # counts its commits
    runs: int  # number of its runs that are stored


class ConversationPage(Value):
    """One page of a list of conversations."""

    conversations: tuple[ConversationSummary, ...]  # newest first
    next_cursor: str | None  # None on the last page


@frozen
class Facets:
    """The distinct values in the run log, sorted, for the choices of a filter."""

    agents: tuple[str, ...] = ()  # names of clients' programs
    models: tuple[str, ...] = ()  # asked of upstreams
    failure_types: tuple[str, ...] = ()  # labels that monitors reported
    experiments: tuple[str, ...] = ()  # their ids
    arms: tuple[str, ...] = ()  # of all experiments


@frozen
class AgentHealth:
    """One agent's runs."""

    agent: str  # the client's program, as its user agent names it
    runs: int  # those that the filter selects
    mean_composite: float  # mean of the runs' means, in [0, 1]
    peak_composite: float  # highest peak of a run, in [0, 1]


@frozen
class RecentRun:
    """One run as a point of a sparkline."""

    run_id: str  # for the link to its page
    started_at: float  # epoch seconds
    steps: int  # scored ones
    mean_composite: float  # of its scored steps, in [0, 1]
    peak_composite: float  # of its scored steps, in [0, 1]
    severity: str = "low"  # the worst that it came to


class RunCounts(CountedSteps):
    """Numbers of runs."""

    total_runs: int = 0  # those that the filter selects
    total_steps: int = 0  # their scored steps
    success_runs: int = 0  # with outcome success
    failure_runs: int = 0  # with outcome failure
    runs_with_fires: int = 0  # a monitor fired at one step or more
    clean_runs: int = 0  # never reached a composite of 0.35
    clean_run_rate: float = 0.0  # clean of all runs, in [0, 1]


class HealthSummary(RunCounts):
    """The health of the runs that a filter selects. `fires`, `severity` and `states` count
    scored steps. Ratios and composites are in [0, 1], rounded to 4 decimals. `saved_usd`
    covers the calls whose price is known with and without steering."""

    mean_composite: float = 0.0  # over all scored steps
    peak_composite: float = 0.0  # the highest of a step
    cached_share: float = 0.0  # cached of all input tokens
    fires: Mapping[str, int] = {}  # scored steps at which a monitor fired, by monitor
    severity_runs: Mapping[str, int] = {}  # runs by the worst severity they came to
    by_agent: tuple[AgentHealth, ...] = ()  # the agents with the most runs
    recent: tuple[RecentRun, ...] = ()  # the last 30 runs, oldest first
    limited: bool = False  # more runs match, and only the newest are in it


@frozen
class PruneReport:
    """The effect of one retention pass."""

    conversations: int  # number removed
    runs: int  # number removed
    bytes_before: int  # in use before the pass
    bytes_after: int  # in use after it


# Greatest age of the newest call of a run under way, in seconds: a tool may run for minutes.
LIVE_S = 900.0
LIVE_RUNS = 200  # most runs that are listed as under way
# Runs that began earlier than this are not looked for, which keeps the query short.
LONGEST_S = 7 * 86_400.0


class LiveQuery(Value):
    """Query of the runs under way."""

    since: float  # epoch seconds: a call at or after
    begun: float  # epoch seconds: begun at or after
    spent_since: float  # epoch seconds from which their costs are summed
    tenant: str | None = None  # owner of the runs; None = all
    limit: int = LIVE_RUNS  # most runs, the newest first

    @classmethod
    def at(cls, now: float, *, tenant: str | None = None, spent_s: float = 600.0) -> "LiveQuery":
        """Runs under way at `now`, and what they cost in the last `spent_s` seconds."""
        return cls(
            since=now - LIVE_S, begun=now - LONGEST_S, spent_since=now - spent_s, tenant=tenant
        )


@frozen
class LiveRun:
    """One run under way."""

    run: RunRecord  # description and totals
    newest: StepRow | None = None  # its newest scored step, without texts; None before there is one
    stuck_steps: int = 0  # steps in a row with an alarm, see `streaks`
    # the newest piece, universal rules left out; None without any
    guidance: InjectionRow | None = None
    spent_usd: float | None = None  # US dollars since `spent_since`; None: no known price
    recent_calls: int = 0  # calls since `spent_since`

    @property
    def severity(self) -> Severity:
        """The severity now."""
        return "low" if self.newest is None else step_severity(self.newest, self.stuck_steps)

    @property
    def reasons(self) -> Texts:
        """The evidence of each monitor that fires now, by its name."""
        if self.newest is None:
            return {}
        return {name: self.newest.evidence.get(name, "") for name in self.newest.fired}


# Source: docs/names.md, the dashboard: a sparkline of the last 30 runs, numbers to 4 decimals.
RECENT_RUNS = 30
_DECIMALS = 4

# The fields whose unknown values are skipped in a sum; unknown when all are.
COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
SUMMED = tuple([name for name in CallTotals.__struct_fields__ if name not in COSTS])


class Counted(Struct, frozen=True):
    """The counters of runs, added up."""

    counters: Mapping[str, Fields]  # by name of the counter, then by what it counts
    severity_runs: Mapping[str, int]  # runs by the worst severity they came to


def add_up(runs: Iterable[Sequence[Any]]) -> Counted:
    """The sums over runs, each as (highest composite, counters as JSON). SQL takes ten times as
    long to group what it finds in JSON."""
    counters: dict[str, FieldDict] = {}
    severity_runs: dict[str, int] = {}
    for peak, text in runs:
        found = orjson.loads(text)
        severity = severity_by(peak, found["fired"], found["states"])
        severity_runs[severity] = severity_runs.get(severity, 0) + 1
        for counter, counts in found.items():
            sums = counters.setdefault(counter, {})
            for name, count in (counts or {}).items():
                sums[name] = sums.get(name, 0) + count
    return Counted(counters, severity_runs)


def summary(
    *,
    sums: Fields,
    composite_sum: float,
    scored_steps: int,
    counted: Counted,
    by_agent: tuple[AgentHealth, ...],
    recent: tuple[RecentRun, ...],
    limited: bool,
) -> HealthSummary:
    """The summary from sums over the runs: computes the ratios and rounds."""
    counters: Fields = counted.counters
    named = ("severity", "failure_types", "models", "unsteered", "estimated", "guidance")
    return HealthSummary(
        **{**sums, "peak_composite": _rounded(sums["peak_composite"])},
        **{name: counters.get(name, {}) for name in named},
        clean_run_rate=_ratio(sums["clean_runs"], sums["total_runs"]),
        mean_composite=_ratio(composite_sum, scored_steps),
        cached_share=_ratio(sums["cached_tokens"], sums["input_tokens"]),
        fires=counters.get("fired", {}),
        states={name: n for name, n in counters.get("states", {}).items() if n},
        severity_runs=counted.severity_runs,
        by_agent=by_agent,
        recent=recent,
        limited=limited,
    )


def agent_health(agent: str, runs: int, mean: float, peak: float) -> AgentHealth:
    """One agent's row, rounded."""
    return AgentHealth(
        agent=agent, runs=runs, mean_composite=_rounded(mean), peak_composite=_rounded(peak)
    )


def recent_run(
    run_id: str, started_at: float, steps: int, mean: float, peak: float, counts: str
) -> RecentRun:
    """One point of the sparkline, rounded; `counts`: the run's counters as JSON."""
    counters = orjson.loads(counts)
    return RecentRun(
        run_id=run_id,
        started_at=started_at,
        steps=steps,
        mean_composite=_rounded(mean),
        peak_composite=_rounded(peak),
        severity=severity_by(peak, counters["fired"], counters["states"]),
    )


def _ratio(part: float, whole: float) -> float:
    return _rounded(part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, _DECIMALS)
