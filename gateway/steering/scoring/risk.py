"""Risk of a run: the probability that it fails, given its steps and the outcomes of its workload.

The evidence of the run is a logistic model of features over all its steps, fitted within one source
and model, so that recognising an agent earns nothing. Earlier runs of the workload give a prior."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from operator import add, mul

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.scoring.calibration import (
    FALSE_ALARMS,
    NEVER,
    Calibration,
    Peaks,
    PeopleWeights,
    WordWeights,
    shipped_words,
)

NEWS_DISCOUNT = 0.7  # share taken off the effort of a step whose results are entirely new
FEW_ACTIONS = 5  # added to the actions behind a rate, so that the first few do not dominate
FEW_WORDS = 100  # added to the words that hedges are taken over: a first hedge is no trend
MOST_HEDGES = 3  # hedges counted per thought: one rambling thought is one
REPEATS_MEMORY = 0.15  # weight of the newest action in the mean of repeats: half is lost in 4
NEWEST_THOUGHTS = 5
MOST_TOOLS = 64  # different tools that are counted: a bound on memory
FEW_DIFFERENT = 10  # added to the different words of a thought, so that a short one counts less
WORDS_MEMORY = 0.2  # weight of the newest thought in the mean: half is lost in three steps
MOST_LOG_ODDS = 30.0
BORROWED_RUNS = 2.0  # weight, in runs, of other models' outcomes: that of a prior without outcomes
LASTING_STEPS = 3  # steps in a row at the level from which a run is likely to fail


class WorkloadPrior(Struct, frozen=True, kw_only=True, array_like=True):
    """Finished runs of one workload by outcome; a Beta prior adds one run of each outcome. What the
    installation's own outcomes add (`OwnRisk`): `slope` of the evidence, log odds `offset`, and the
    evidence from which its runs are likely to fail, None = as shipped."""

    solved: float = 0
    failed: float = 0
    slope: float = 1.0
    offset: float = 0.0
    works_alarm: float | None = None
    talks_alarm: float | None = None

    @property
    def log_odds(self) -> float:
        """Log odds that a run of the workload fails."""
        return math.log((self.failed + 1.0) / (self.solved + 1.0)) + self.offset

    def with_outcome(self, *, failed: bool) -> "WorkloadPrior":
        """The prior after one more run."""
        return replace(self, solved=self.solved + (not failed), failed=self.failed + failed)

    def informed_by(self, others: "Iterable[WorkloadPrior]") -> "WorkloadPrior":
        """The prior, given the outcomes on other models, which say how hard the tasks are: in place
        of one run of each outcome, BORROWED_RUNS are added at their rate."""
        counted = [*others]
        failed = sum([other.failed for other in counted])
        solved = sum([other.solved for other in counted])
        share = (failed + 1.0) / (failed + solved + 2.0)
        return WorkloadPrior(
            solved=self.solved + BORROWED_RUNS * (1.0 - share) - 1.0,
            failed=self.failed + BORROWED_RUNS * share - 1.0,
        )


NO_OUTCOMES = WorkloadPrior()


def known_prior(outcomes: Mapping[str, WorkloadPrior], requested: str) -> WorkloadPrior:
    """The outcomes of a workload's runs on the model that it requests; those on its other models
    count as a few more."""
    if not outcomes:
        return NO_OUTCOMES
    others = [known for model, known in outcomes.items() if model != requested]
    return outcomes.get(requested, NO_OUTCOMES).informed_by(others)


class Gain(Struct, frozen=True, kw_only=True):
    """Gain of a fit over what ships, on `runs` of an installation that it never saw, on `days`
    (`failed` of them failed): nats of log loss a run, with the lower end of its 95 % interval, and
    in all."""

    runs: int = 0
    failed: int = 0
    days: int = 0
    mean: float = 0.0
    low: float = 0.0
    total: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether the fit is used. The total is the logarithm of a likelihood ratio that reaches
        20 once in 20 times, however often it is looked at, if what ships is right."""
        return self.low > 0.0 and self.total >= math.log(20.0)


class OwnRisk(Struct, frozen=True, kw_only=True):
    """The risk by the outcomes of one tenant's own runs. `slope` of the evidence and `share` of its
    workload's log odds, both 1 as shipped; `offsets` by names of `of_run`; `works`, `talks`: peaks
    of its solved runs; `since`: when the fit came into use, 0 = what ships is used; `fitted_at`."""

    slope: float = 1.0
    share: float = 1.0
    offsets: Mapping[str, float] = {}
    works: Peaks = NEVER
    talks: Peaks = NEVER
    gain: Gain = Gain()
    since: float = 0.0
    fitted_at: float = 0.0

    @staticmethod
    def of_run(client: str, model: str, project: str) -> tuple[str, ...]:
        """The names whose offsets a run has; "" is every run's."""
        named = {"client": client, "model": model, "project": project}
        return ("", *[f"{kind}:{name}" for kind, name in named.items() if name])

    def applied(
        self, prior: WorkloadPrior, names: Sequence[str], false_alarms: float
    ) -> WorkloadPrior:
        """The prior of a run with these names. A level is the own one once it can be promised."""
        levels = [peaks.level(false_alarms) for peaks in (self.works, self.talks)]
        works, talks = (level if math.isfinite(level) else None for level in levels)
        if not self.since:
            return replace(prior, works_alarm=works, talks_alarm=talks)
        offset = sum([self.offsets.get(name, 0.0) for name in names])
        return replace(
            prior,
            slope=self.slope,
            offset=offset + (self.share - 1.0) * prior.log_odds,
            works_alarm=works,
            talks_alarm=talks,
        )


def risk_of(log_odds: float, prior: WorkloadPrior = NO_OUTCOMES) -> float:
    """The probability in (0, 1) that a run with this evidence fails."""
    total = prior.slope * log_odds + prior.log_odds
    total = min(max(total, -MOST_LOG_ODDS), MOST_LOG_ODDS)
    return 1.0 / (1.0 + math.exp(-total))


AS_SHIPPED = OwnRisk()


class RunTotals:
    """The features of a run up to its newest step, kept at constant cost per step.

    In the order of `calibration.RISK_FEATURES`. For any run: `effort`, log of the steps spent,
    where a step counts less the more of its results is new; `thoughts`, words of the newest
    thoughts, and `results`, characters of the results of a step, as logarithms; `news`, share of
    new words in the results of a step; `changed`, calls whose result differs from before, per
    action; `hedging`, hedges per word; `retold`, share of a thought's words that the thoughts
    before it had; `repeats`, moving mean over the actions. Only while the run works on files or
    programs: `tools`, how many tools are used, for the number of actions; `passes`, programs that
    ran well, and `looks`, calls that show content, per action; `one_tool`, the share of the tool
    used most. Only while it does not: `talk_tools`, `talk_one_tool`, `talk_calls` (calls per step)
    and `talk_fails` (failed calls per action)."""

    __slots__ = ("_most_used", "_repeats", "_sums", "_thoughts", "_tools", "works")

    def __init__(self) -> None:
        self._sums: list[float] = [0] * 13
        self._repeats, self._most_used = 0.0, 0
        self._thoughts: deque[float] = deque(maxlen=NEWEST_THOUGHTS)
        self._tools: Counter[str] = Counter()
        self.works = False

    def push(self, observed: ObservedStep) -> None:
        """Observe the next step."""
        words, actions = observed.facts.words, observed.actions
        self._thoughts.append(math.log1p(words))
        news = max(observed.news.novelty) if observed.news.novelty else 0.0
        effort = 0.0 if observed.waits else 1.0 - NEWS_DISCOUNT * news
        if not actions:
            self._add(1, observed.retold, effort)
            return
        changed = fails = looks = passes = 0
        for action, repeat in actions:
            failed = action.failure is not None and not repeat.waits
            changed += repeat.changed
            fails += failed
            looks += action.effect.reads
            passes += action.program is not None and not failed
            self._repeats += REPEATS_MEMORY * (repeat.strength - self._repeats)
            if action.operation in self._tools or len(self._tools) < MOST_TOOLS:
                self._tools[action.operation] += 1
                self._most_used = max(self._most_used, self._tools[action.operation])
            self.works = self.works or action.works
        size = math.log1p(sum([len(action.observation) for action in observed.step.actions]))
        hedges = min(observed.facts.hedges, MOST_HEDGES)
        counts = (len(actions), changed, fails, looks, passes)
        self._add(1, observed.retold, effort, 1, news, size, hedges, words, *counts)

    def _add(self, *values: float) -> None:
        self._sums[: len(values)] = map(add, self._sums, values)

    def values(self) -> tuple[float, ...]:
        """The features now; before the first step all are 0."""
        steps, retold, effort, acting, news, results, hedges, words, *counts = self._sums
        calls, changed, fails, looks, passes = counts
        actions = calls + FEW_ACTIONS
        tools = len(self._tools) / math.sqrt((calls or 1) + 1)
        one_tool = self._most_used / (calls or 1)
        works, talks = float(self.works), float(not self.works)
        return (
            math.log1p(effort),
            sum(self._thoughts) / (len(self._thoughts) or 1),
            results / (acting or 1),
            news / (acting or 1),
            changed / actions,
            hedges / (words + FEW_WORDS),
            retold / (steps or 1),
            self._repeats,
            works * tools,
            works * passes / actions,
            works * looks / actions,
            works * one_tool,
            talks * tools,
            talks * one_tool,
            talks * calls / (steps or 1),
            talks * fails / actions,
        )


class RunWords:
    """The evidence of a run's words: the moving mean over its steps, each the sum of the weights of
    the different words of its thought, by a root of their number."""

    __slots__ = ("_mean", "_steps", "_words")

    def __init__(self, words: WordWeights) -> None:
        self._words, self._mean, self._steps = words, 0.0, 0

    def push(self, vocabulary: frozenset[str], *, works: bool) -> float:
        """The evidence after a step with these words of a run that `works` by then."""
        words = self._words
        weights = words.works if works else words.talks
        total = sum([weights[word] for word in vocabulary if word in weights])
        newest = words.unit * total / math.sqrt(len(vocabulary) + FEW_DIFFERENT)
        self._steps += 1
        self._mean += max(1.0 / self._steps, WORDS_MEMORY) * (newest - self._mean)
        return self._mean - (words.works_average if works else words.talks_average)


class LedRun:
    """The evidence that the person who leads a run will correct it. A person leads who writes in
    the middle of work on files or programs, or wrote after an earlier run. What is fitted on
    benchmarks tells such runs apart no better than chance, so it does not count in them."""

    __slots__ = ("_edits", "_led", "_weights")

    def __init__(self, weights: PeopleWeights | None, *, led: bool) -> None:
        self._weights, self._led, self._edits = weights, led, 0

    def push(self, observed: ObservedStep, *, works: bool) -> float | None:
        """Evidence after the next step; None while nobody leads the run."""
        facts, weights = observed.facts, self._weights
        self._led = self._led or (works and facts.prompted)
        for action in facts.actions:
            self._edits += len(action.edits)
        if weights is None or not self._led:
            return None
        asks = weights.asks * facts.asks
        return weights.edits * math.log1p(self._edits) + asks - weights.average


class RiskModel:
    """The evidence of one run: `log_odds` that it fails, for a workload of which half fail.
    `evidence`: the same by its task alone, which a run that a person leads has, too. `lasting`: the
    least of that in the newest LASTING_STEPS steps, -inf before there are so many and while a
    person leads; `likely`: all of them were at the level that at most `false_alarms` of the solved
    runs reach, or at the `prior`'s. `led`: the run follows another one of its conversation."""

    __slots__ = (
        *("_alarms", "_led", "_newest", "_reached", "_risk", "_steps", "_totals", "_words"),
        *("evidence", "log_odds"),
    )

    def __init__(
        self,
        calibration: Calibration,
        words: WordWeights | None = None,
        *,
        led: bool = False,
        false_alarms: float = FALSE_ALARMS,
        prior: WorkloadPrior = NO_OUTCOMES,
    ) -> None:
        self._risk = risk = calibration.risk
        works, talks = prior.works_alarm, prior.talks_alarm
        self._alarms = (
            risk.talks_alarm.level(false_alarms) if talks is None else talks,
            risk.works_alarm.level(false_alarms) if works is None else works,
        )
        self._totals = RunTotals()
        self._words = RunWords(words or shipped_words()) if calibration.risk.words else None
        self._led = LedRun(calibration.risk.people, led=led)
        self._newest: deque[float] = deque(maxlen=LASTING_STEPS)
        self._steps = self._reached = 0
        self.evidence = self.log_odds = 0.0

    @property
    def works(self) -> bool:
        """Whether the run works on files or programs."""
        return self._totals.works

    @property
    def lasting(self) -> float:
        """The least evidence of the newest steps."""
        return min(self._newest) if len(self._newest) == LASTING_STEPS else -math.inf

    @property
    def likely(self) -> bool:
        """Whether the evidence has lasted at its level."""
        return self._reached >= LASTING_STEPS

    def push(self, observed: ObservedStep) -> None:
        """Observe the next step."""
        self._totals.push(observed)
        self._steps += 1
        risk, works = self._risk, self._totals.works
        average, alarm = risk.works if works else risk.talks, self._alarms[works]
        evidence = float(sum(map(mul, risk.weights, self._totals.values()))) - average
        if self._words is not None:
            evidence += risk.words * self._words.push(observed.facts.vocabulary, works=works)
        self.evidence = evidence = evidence * self._steps / (self._steps + risk.early)
        led = self._led.push(observed, works=works)
        if led is None:
            self.log_odds = evidence
            self._newest.append(evidence)
            self._reached = self._reached + 1 if evidence >= alarm else 0
        else:
            self.log_odds, self._reached = led, 0
            self._newest.clear()
