"""Filters of runs, as API, pages, commands and exports have them, and the choices of each."""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import nan

from msgspec import structs

from gateway.core.fsm import FSMState
from gateway.data_files import read_toml
from gateway.steering.experiments import MODES
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.records import IMPORTED
from gateway.stores.severity import SEVERITY_WORDS
from gateway.stores.stopped_by import STOPPERS
from gateway.values import Fields, Value, frozen

OUTCOMES = ("success", "failure", "other")
FACET_RUNS = 1000  # the newest runs whose values are offered as the choices of a filter
UNFINISHED = "unfinished"  # the outcome to filter by for runs without one
LIVE = "live"  # the mode to filter by for all runs but imported ones
STOPPED_BY = (ANY := "yes", *STOPPERS)  # what to filter stopped and paused runs by

MAX_WORDS = 12  # of a search: more are not looked for
LAST_TIME = 253402300799  # the end of the year 9999, the last one of every date library
STATES = tuple(state.value for state in FSMState)
TIMES = ("since", "until")
_SEVERITY_OF = {word: code for code, word in SEVERITY_WORDS.items()}
_MODES = (LIVE, IMPORTED, *MODES)
_DAY_S = 86400.0
PERIODS = {"hour": 3600.0, "today": _DAY_S, "day": _DAY_S, "week": 7 * _DAY_S, "month": 30 * _DAY_S}
_CHOICES = {
    "severity": tuple(_SEVERITY_OF),
    "period": tuple(PERIODS),
    "state": STATES,
    "intervention": tuple(KIND_LABELS),
    "arm": MODES,
    "mode": _MODES,
    "outcome": (*OUTCOMES, UNFINISHED),
    "stopped": STOPPED_BY,
}
# The filters of runs that API, pages, commands and exports have: their description, which goes on
# after "Only runs", and the values that one can have if it takes no text or time (TIMES).
FILTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    name: (text, _CHOICES.get(name, ()))
    for name, text in read_toml(__package__, "filters.toml").items()
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
    severity: str | None = None  # the code of the worst that it came to
    search: str | None = None  # words in its texts, see `phrases`

    @property
    def summed(self) -> "RunFilter":
        """The filter for sums: imported runs are in none, unless their mode is asked for."""
        if self.mode is not None:
            return self
        return structs.replace(self, mode=LIVE)


def run_filter(values: Fields, tenant: str | None) -> RunFilter:
    """The filter that values of FILTERS describe, within `tenant`; empty texts select all."""
    given = {n: v for n in FILTERS if (v := values.get(n)) not in (None, "")}
    tags = read_tag_filter(given.pop("tag", ""))
    if project := given.pop("project", None):
        tags = (*tags, ("project", project))
    if period := given.pop("period", None):
        now = time.time()
        if period == "today":
            begun = now - now % _DAY_S
        else:
            begun = now - PERIODS[period]
        given["since"] = max(begun, given.get("since", 0.0))
    if severity := given.pop("severity", None):
        given["severity"] = _SEVERITY_OF.get(severity, severity)
    given |= {"tenant": tenant, "key_name": given.pop("key", None), "tags": tags}
    return RunFilter(**given)


def in_words(text: str) -> str:
    """A choice of a filter; a severity by its name of earlier versions is given in words."""
    return SEVERITY_WORDS.get(text, text)


def read_tag_filter(text: str) -> tuple[tuple[str, str | None], ...]:
    """`team=web,env` as (name, value) pairs; a name alone stands for any value."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return tuple((name.strip().lower(), value.strip() if eq else None) for name, eq, value in pairs)


def read_time(text: str) -> float:
    """Seconds since the epoch, or an ISO 8601 date or time, UTC where it names no zone. Raises:
    ValueError."""
    try:
        if "_" in text:
            value = nan
        else:
            value = float(text)
    except ValueError:
        # fromisoformat refuses leap seconds, which ISO 8601 allows.
        try:
            at = datetime.fromisoformat(text.upper().replace(":60", ":59"))
            value = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            value = nan
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
class Facets:
    """The distinct values in the run log, sorted, for the choices of a filter."""

    agents: tuple[str, ...] = ()  # names of clients' programs
    models: tuple[str, ...] = ()  # asked of upstreams
    failure_types: tuple[str, ...] = ()  # labels that monitors reported
    experiments: tuple[str, ...] = ()  # their ids
    arms: tuple[str, ...] = ()  # of all experiments
    tags: tuple[str, ...] = ()  # names of tags of live runs
