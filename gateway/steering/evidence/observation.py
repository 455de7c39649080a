"""Observation of a step in its run: repeats, news, and whether the step is trouble.

Scorer and robust monitors read the same observation, made once per step from bounded
memory: a late step costs what an early one does."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from gateway.steering.evidence.edits import Edit, goes_back
from gateway.steering.evidence.features import ActionFacts, StepFacts, alike, describe, has_answer
from gateway.steering.evidence.repeats import CallMemory, KnownWords, Repeat
from gateway.steering.transcript.steps import Step

R = TypeVar("R")

ObservedCalls = tuple[tuple[ActionFacts, Repeat], ...]  # each call with what it repeats
Trouble = Literal["same failure", "no news", "reverted edit", "refused edit", "said before"]

PARALLEL_FAILURES = 2  # equal failures of one step that count
FAILURE_CALLS = 12  # newest calls whose failures are compared: above a window of steps
NO_NEWS = 0.5  # strength from which a repeat brings no news; see `repeats`
REMEMBERED_EDITS = 8  # newest edits of a file that a later one is compared with
REMEMBERED_FILES = 64  # files whose edits are remembered, the latest edited ones: a bound on memory
ECHO_OVERLAP = 0.7  # share of words, in [0, 1], from which one message says the same as another
ECHO_WORDS = 6  # fewer different words are a stock phrase: "Reading the next file."
ECHO_THOUGHTS = 8  # newest messages and thoughts that can be echoed


class News(NamedTuple):
    """News in the result of each call of a step: `tells`, whether it has a new word that is
    neither a number nor a word of the call; `novelty`, the share of its words that no earlier
    result had, in [0, 1]."""

    tells: tuple[bool, ...] = ()
    novelty: tuple[float, ...] = ()


class ObservedStep(Struct, frozen=True, kw_only=True):
    """The facts of a step, and what they mean after the steps before it. `actions`: each call with
    what it repeats; `retold`: share of the thought's words that the newest thoughts had, in [0, 1];
    `waits`: every call waits for something; `repairing`: files were edited since the last test that
    passed and the last commit."""

    step: Step
    facts: StepFacts
    actions: ObservedCalls
    news: News
    retold: float
    trouble: Trouble | None
    waits: bool
    repairing: bool

    @property
    def deliberate(self) -> Sequence[int]:
        """The places of the calls that count: calls made at once are not made in spite of the
        failure of the first ones."""
        if len(self.actions) <= PARALLEL_FAILURES:
            return range(len(self.actions))
        kept, times = [], Counter[str | None]()
        for at, (action, _) in enumerate(self.actions):
            times[action.failure] += action.failure is not None
            if times[action.failure] <= PARALLEL_FAILURES:
                kept.append(at)
        return kept


class RunObserver:
    """Observes the steps of one run in order."""

    __slots__ = ("_failures", "_files", "_known", "_memory", "_repairing", "_thoughts")

    def __init__(self) -> None:
        self._memory = CallMemory()
        self._known = KnownWords()
        self._failures: deque[str | None] = deque(maxlen=FAILURE_CALLS)
        self._files: dict[str, deque[Edit]] = {}
        self._thoughts: deque[frozenset[str]] = deque(maxlen=ECHO_THOUGHTS)
        self._repairing = False

    def observe(self, step: Step) -> ObservedStep:
        """The next step of the run. Never raises."""
        facts = describe(step)
        if step.cue == "compacted":
            self._memory.compact()
        observe = self._memory.observe
        actions = tuple([(a, observe(a, parallel=at > 0)) for at, a in enumerate(facts.actions)])
        echoes, retold = self._listen(facts.vocabulary, speaks=not actions)
        trouble = self._trouble(actions)
        if echoes:
            trouble = "said before"
        for action in facts.actions:
            if action.failure is None and (action.effect.settles or action.edits):
                self._repairing = not action.effect.settles
        return ObservedStep(
            step=step,
            facts=facts,
            actions=actions,
            news=self._news(facts.actions),
            retold=retold,
            trouble=trouble,
            waits=bool(actions) and not [1 for _, repeat in actions if not repeat.waits],
            repairing=self._repairing,
        )

    def _news(self, actions: tuple[ActionFacts, ...]) -> News:
        """`tells`, compared with earlier steps, and `novelty`, also with the calls before."""
        if not actions:
            return News()
        known, first, *others = self._known, *[action.answer for action in actions]
        fresh = known.fresh(first.words)
        tells = [has_answer(fresh, first.asked)]
        tells += [has_answer(known.fresh(other.words), other.asked) for other in others]
        novelty = [known.novelty(first.words, fresh)]
        novelty += [known.novelty(other.words) for other in others]
        return News(tuple(tells), tuple(novelty))

    def _listen(self, words: frozenset[str], *, speaks: bool) -> tuple[bool, float]:
        """True for a message of some length that says the same as an earlier one; its `retold`.
        `speaks`: the step is a message; the thought before a call may say the same again."""
        if not words:
            return False, 0.0
        echoes = (speaks and len(words) >= ECHO_WORDS) and any(
            alike(words, thought, ECHO_OVERLAP) for thought in self._thoughts
        )
        fresh = words.difference(*self._thoughts)
        self._thoughts.append(words)
        return echoes, 1.0 - len(fresh) / len(words)

    def _trouble(self, actions: ObservedCalls) -> Trouble | None:
        found: Trouble | None = None
        news = not actions
        for action, repeat in actions:
            failure = None if repeat.waits else action.failure
            again = failure is not None and failure in self._failures
            self._failures.append(failure)
            failed = failure is not None
            found = ("same failure" if again else self._edits(action, failed)) or found
            applied = action.effect.changes and not failed and repeat.count == 1
            news = news or repeat.waits or applied or repeat.strength < NO_NEWS
        return found or (None if news else "no news")

    def _edits(self, action: ActionFacts, failed: bool) -> Trouble | None:
        found: Trouble | None = None
        for edit in action.edits:
            if failed:
                return "refused edit"
            earlier = self._files.pop(edit.path, None) or deque(maxlen=REMEMBERED_EDITS)
            if goes_back(edit, earlier):
                found = "reverted edit"
            earlier.append(edit)
            self._files[edit.path] = earlier
            if len(self._files) > REMEMBERED_FILES:
                del self._files[next(iter(self._files))]
        return found


class ReadsObservations(ABC, Generic[R]):
    """A scorer or suite that can take a run's observation, so that the run makes it only once. A
    class, not a protocol: `isinstance` with a protocol took 2 % of a request."""

    __slots__ = ()

    @abstractmethod
    def push_observed(self, observed: ObservedStep) -> R:
        """Observe the next step of the run; what it returns is what `push` returns."""
