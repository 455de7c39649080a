"""Values learned from recorded runs: weights, budgets, precision and their origin."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from operator import mul
from typing import Any

from msgspec import Struct, ValidationError, convert

FORMAT = 2
WORDS_FORMAT = 1
FALSE_ALARMS = 0.05
"""Promised share of the runs that end well which are ever called likely to fail."""
DOUBT = 0.01  # probability that solved runs promise a level which more than the share reach
LEVEL_MARGIN = 0.01  # log odds by which a level is above the last solved run that stays below it
MOST_PEAKS = 500  # that are kept: as many as a promise of 5 % takes of 11,000 solved runs
SHIPPED = "weights.json"
SHIPPED_WORDS = "words.json"

WINDOW_STEPS = 8  # Newest steps that a score of difficulty looks at. Source: design section 7.
NEWEST_STEPS = 3  # newest steps that count once more within the window
SIGNALS = (  # signals of a step about the stretch it is in; `calibrated.signals_of` defines each
    *("trouble", "repeats", "fails", "empty"),
    *("looks", "calls", "passes"),
)
STALE = "stale.newest"  # of the newest step alone: over more steps it follows the step number
SPANS = ("newest", "recent", "window")
# The scorer's inputs in the order of their weights: each signal over three spans of steps.
FEATURES = (*[f"{signal}.{span}" for span in SPANS for signal in SIGNALS], STALE)
_FORMER = {f"{signal}.{span}" for span in SPANS for signal in ("stale", "retells")} - {STALE}
CONTEXT = ("looks", "calls", "passes")  # no trouble by themselves: weights of either sign
SIGNS: Mapping[str, int] = {
    name: 0 if name.partition(".")[0] in CONTEXT else 1 for name in FEATURES
}  # the direction each feature must push: evidence of trouble never lowers a score; 0 = either

RISK_FEATURES = (  # the inputs of risk in the order of their weights; `risk.RunTotals` defines each
    *("effort", "thoughts", "results", "news", "changed", "hedging", "retold", "repeats"),
    *("tools", "passes", "looks", "one_tool"),
    *("talk_tools", "talk_one_tool", "talk_calls", "talk_fails"),
)


class WordWeights(Struct, frozen=True, kw_only=True):
    """Weights of the words of a thought, by the kind of run, in whole units, so that a sum does not
    depend on their order; for each kind the average evidence."""

    works: Mapping[str, int] = {}
    talks: Mapping[str, int] = {}
    unit: float = 0.0
    works_average: float = 0.0
    talks_average: float = 0.0


@lru_cache(maxsize=64)
def _allowed_above(runs: int, false_alarms: float) -> int:
    """The largest k for which fewer than k of so many runs are above a level that this share
    reaches in DOUBT of the samples at most: the k-th highest run is then such a level."""
    term = runs * math.log1p(-false_alarms)
    above, total, odds = 0, math.exp(term), math.log(false_alarms) - math.log1p(-false_alarms)
    while total <= DOUBT and above < runs:
        above += 1
        term += math.log((runs - above + 1) / above) + odds
        total += math.exp(term)
    return above


class Peaks(Struct, frozen=True, kw_only=True):
    """The `largest` evidence above 0 that lasted in `runs` solved runs, in falling order. Without
    runs, the first is the level itself, whatever is promised; without any there is none."""

    runs: int = 0
    largest: tuple[float, ...] = ()

    @classmethod
    def of(cls, peaks: Sequence[float]) -> "Peaks":
        """The peaks of these solved runs, one a run."""
        largest = sorted([round(peak, 4) for peak in peaks if peak > 0.0], reverse=True)
        return cls(runs=len(peaks), largest=tuple(largest[:MOST_PEAKS]))

    def level(self, false_alarms: float) -> float:
        """The level that at most this share of such runs ever reaches, in however many steps each
        is looked at; in 1 - DOUBT of the samples, if the next run is drawn like these. Infinite
        for too few runs."""
        if not self.runs or not false_alarms:
            return self.largest[0] if self.largest and false_alarms else math.inf
        above = _allowed_above(self.runs, false_alarms)
        if not above:
            return math.inf
        known = self.largest[:above]
        low = len(known) < above and len(self.largest) < MOST_PEAKS
        return LEVEL_MARGIN + (0.0 if low else known[-1])


NEVER = Peaks()


class PeopleWeights(Struct, frozen=True, kw_only=True):
    """Evidence that a person will correct a run: `average` of all runs, weight of the logarithm of
    `edits`, and of a newest step that `asks` the person."""

    average: float = 0.0
    edits: float = 0.0
    asks: float = 0.0


class RiskWeights(Struct, frozen=True, kw_only=True):
    """The fitted evidence of a run: weights per unit of each of RISK_FEATURES.

    `works`, `talks`: average of runs that work on files or programs and of others, taken off so
    that their evidence is 0; `works_alarm`, `talks_alarm`: the highest that it came to in solved
    runs of either kind, from which a run is likely to fail. `words`: weight of the evidence of
    words; `early`: steps after which half of the evidence counts; `people`: of a run that a person
    leads. Raises: ValueError for a feature without weight, or a number that is not finite."""

    weights: tuple[float, ...]
    works: float
    talks: float
    works_alarm: Peaks = NEVER
    talks_alarm: Peaks = NEVER
    words: float = 0.0
    early: float = 0.0
    people: PeopleWeights | None = None

    def __post_init__(self) -> None:
        if len(self.weights) != len(RISK_FEATURES):
            raise ValueError(f"risk: expected {len(RISK_FEATURES)}, got {len(self.weights)}")
        if not all(map(math.isfinite, (*self.weights, self.works, self.talks))):
            raise ValueError("risk: expected finite numbers")
        if self.early < 0.0:
            raise ValueError("risk.early: expected 0 or more steps")


class Calibration(Struct, frozen=True, kw_only=True):
    """A fitted scorer, and the fitted risk.

    `weights` are per unit of each feature, `bias` the log odds at zero; `budget_works` and
    `budget_talks` the calls within which nearly all successful runs ended, for agents that change
    files or run programs and for the others; `precision` the share of failed runs among those with
    a signal, per signal; `provenance` the origin of the numbers.
    Raises: ValueError for a missing weight or one of the wrong sign, a number out of range."""

    bias: float
    weights: tuple[float, ...]
    risk: RiskWeights
    budget_works: int
    budget_talks: int
    precision: Mapping[str, float]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES):
            raise ValueError(f"weights: expected {len(FEATURES)}, got {len(self.weights)}")
        for name, weight in zip(FEATURES, self.weights, strict=True):
            if not math.isfinite(weight) or weight * SIGNS[name] < 0:
                raise ValueError(f"weights.{name}: {weight!r} pushes the wrong way")
        if not math.isfinite(self.bias):
            raise ValueError(f"bias: expected a finite number, got {self.bias!r}")
        for key, budget in (("works", self.budget_works), ("talks", self.budget_talks)):
            if budget < 1:
                raise ValueError(f"budgets.{key}: expected at least 1, got {budget!r}")
        for name, value in self.precision.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"precision.{name}: expected a number in [0, 1], got {value!r}")

    def log_odds(self, features: tuple[float, ...]) -> float:
        """Log odds of the difficulty of a stretch with these FEATURES."""
        return self.bias + float(sum(map(mul, self.weights, features)))

    def call_budget(self, *, works: bool) -> int:
        """Calls that nearly all successful runs of the kind stayed within."""
        return self.budget_works if works else self.budget_talks


def calibration_from_json(text: str | bytes) -> Calibration:
    """The calibration in a weights file. Raises: ValueError for another format, a missing key or a
    value out of range."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"weights file: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") is True or data.get("format") != FORMAT:
        raise ValueError(f"format: expected {FORMAT}, as written by `python -m lab calibrate`")
    precision = _member(data, "precision")
    if unknown := _member(data, "weights").keys() - {*FEATURES, *_FORMER}:
        raise ValueError(f"weights.{min(unknown)}: unknown, expected {', '.join(FEATURES)}")
    risk = _member(data, "risk")
    added: dict[str, Any] = {n: _number(risk, n) for n in ("words", "early") if n in risk}
    added |= {f"{kind}_alarm": _peaks(risk, kind) for kind in risk.get("alarms", ())}
    people = {name: _number(risk, "people", name) for name in risk.get("people", ())}
    return Calibration(
        bias=_number(data, "bias"),
        weights=tuple([_number(data, "weights", name) for name in FEATURES]),
        risk=RiskWeights(
            weights=tuple([_number(risk, "weights", name) for name in RISK_FEATURES]),
            works=_number(risk, "averages", "works"),
            talks=_number(risk, "averages", "talks"),
            people=PeopleWeights(**people) if people else None,
            **added,
        ),
        budget_works=int(_number(data, "budgets", "works")),
        budget_talks=int(_number(data, "budgets", "talks")),
        precision={name: _number(data, "precision", name) for name in precision},
        provenance=_member(data, "provenance"),
    )


def _peaks(risk: Mapping[str, Any], kind: str) -> Peaks:
    """The peaks of solved runs, or the level that weights files of before have."""
    alarms = _member({"risk.alarms": risk["alarms"]}, "risk.alarms")
    if not isinstance(own := alarms.get(kind), dict):
        return Peaks(largest=(_number(risk, "alarms", kind),))
    try:
        return convert(own, Peaks)
    except ValidationError as error:
        raise ValueError(f"risk.alarms.{kind}: {error}") from error


def _member(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key}: {_expected('an object', value)}")
    return value


def _number(data: Mapping[str, Any], *path: str) -> float:
    """A finite number of the file, or of an object in it."""
    value = (data if len(path) == 1 else _member(data, path[0])).get(path[-1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{'.'.join(path)}: {_expected('a finite number', value)}")
    return float(value)


def _expected(what: str, value: object) -> str:
    return f"expected {what}, got {value!r:.60}" if value is not None else f"{what} is missing"


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package, read once."""
    source = resources.files("gateway.steering.scoring").joinpath(SHIPPED)
    return calibration_from_json(source.read_text(encoding="utf-8"))


def words_from_json(text: str | bytes) -> WordWeights:
    """The weights in a file of words. Raises: ValueError for another format or a missing key."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"words file: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != WORDS_FORMAT:
        raise ValueError(f"words file: expected format {WORDS_FORMAT}")
    works, talks = (
        {name: int(_number(data, kind, name)) for name in _member(data, kind)}
        for kind in ("works", "talks")
    )
    return WordWeights(
        works=works,
        talks=talks,
        unit=_number(data, "unit"),
        works_average=_number(data, "averages", "works"),
        talks_average=_number(data, "averages", "talks"),
    )


@lru_cache(maxsize=1)
def shipped_words() -> WordWeights:
    """The weights of words that come with the package, read once."""
    source = resources.files("gateway.steering.scoring").joinpath(SHIPPED_WORDS)
    return words_from_json(source.read_text(encoding="utf-8"))
