"""Suite `robust`: the monitors on the facts that `steering.evidence` reads."""

from collections import deque
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct

from gateway.steering.evidence.edits import Edit, goes_back
from gateway.steering.evidence.features import ActionFacts, alike
from gateway.steering.evidence.observation import REMEMBERED_EDITS, REMEMBERED_FILES, ObservedStep
from gateway.steering.evidence.outcomes import is_of_object
from gateway.steering.evidence.repeats import Repeat, spends
from gateway.steering.monitors.settings import CALLS_OF_TALK, CALLS_OF_WORK, RobustSettings

CAP = 5  # repeats that score 1; three fire at the default threshold. Source: reference section 4.1.
COMPARED_TEXTS = 6  # newest messages that the next one is compared with
SAME_TEXT = 0.7  # share of words, in [0, 1], from which two messages are alike
LONG_TEXT_WORDS = 12  # different words from which two alike messages are a monologue
SHORT_TEXT_WORDS = 4  # different words from which the very same message counts
TELLS_NOTHING = 0.5  # share of the recovery after an action whose result has no new word
ASKED_FOR = 0.25  # share of a repeat that counts after a user's message, which may want it
RETOLD = 0.5  # share of known words from which an answer to "go ahead" is the plan once more
RARE_TALK = 0.2  # share of steps without an action below which several in a row are unusual


class Streak:
    """Leaky count of repeats: each adds its strength, any other action lowers the count. Cycles of
    several calls need no special case: from the second round on each call repeats one of the last
    dozen. Messages without an action count when they repeat an earlier one, or when the agent has
    hardly written any before; an answer or a question to the user is a conversation, not a
    monologue."""

    __slots__ = ("_acted", "_level", "_recovery", "_steps", "_talk", "_talks", "_texts", "_what")

    def __init__(self, settings: RobustSettings) -> None:
        self._recovery = settings.recovery
        self._level = 0.0
        self._what = ""
        self._texts: deque[tuple[int, frozenset[str]]] = deque(maxlen=COMPARED_TEXTS)
        # All steps, all messages without an action, and those in a row that asked nothing.
        self._steps = self._talks = self._talk = 0
        self._acted = False

    def push(self, step: ObservedStep) -> None:
        """Count what repeats; anything else lowers the count."""
        if step.actions:
            self._talk = 0
            self._acted = True
            for (action, repeat), tells in zip(step.actions, step.news.tells, strict=True):
                strength, what = repeat.strength, action.operation[:60]
                if step.facts.prompted and not action.answer.negative:
                    strength *= ASKED_FOR
                again = f"{repeat.count} x {what}, same result"
                what = again if repeat.count > 1 else f"{what} brings what is known"
                self._add(strength, what, tells=tells)
        else:
            self._read_message(step)
        self._steps += 1

    def _read_message(self, step: ObservedStep) -> None:
        facts = step.facts
        self._talk = 0 if facts.asks or facts.prompted else self._talk + 1
        self._talks += 1
        words = facts.vocabulary
        echo = len(words) >= SHORT_TEXT_WORDS and any(t == facts.thought for t, _ in self._texts)
        if facts.prompted or (facts.asks and self._acted):
            # One form of answer to different wishes is fine; the very same words again are not.
            echo = echo and not self._acted
        elif len(words) >= LONG_TEXT_WORDS:
            echo = echo or any(alike(words, earlier, SAME_TEXT) for _, earlier in self._texts)
        # Told to begin, it says once more what it would do.
        echo = echo or (facts.cue == "go" and not self._acted and step.retold >= RETOLD)
        self._acted = False
        self._texts.append((facts.thought, words))
        self._add(1.0 if echo else 0.0, "messages without an action that say the same")

    def _add(self, strength: float, what: str, *, tells: bool = True) -> None:
        if strength > 0:
            self._level = min(self._level + strength, float(CAP))
            self._what = what
        else:
            self._level *= self._recovery if tells else 1.0 - (1.0 - self._recovery) * TELLS_NOTHING

    def reading(self) -> tuple[float, str]:
        """min(repeats / 5, 1), decaying once the agent does something else."""
        talk = self._talk
        talk_before = (self._talks - talk + 1) / (self._steps - talk + 2)
        if talk > self._level and talk_before < RARE_TALK:
            return min(talk / CAP, 1.0), f"{talk} messages in a row without an action"
        score = self._level / CAP
        return (score, self._what) if score >= 0.01 else (0.0, "")


AT_BUDGET = 0.6  # score when the budget is reached: the default fire threshold


class CallCount:
    """Calls against a budget; linear, so that the composite feels it before it fires. Without a
    configured budget it is one of CALLS_OF_WORK and CALLS_OF_TALK."""

    __slots__ = ("_budget", "_calls", "_works")

    def __init__(self, settings: RobustSettings) -> None:
        self._budget = settings.call_budget
        self._calls = 0
        self._works = False

    def push(self, step: ObservedStep) -> None:
        """Count the step's calls; waiting for a job costs nothing."""
        for action, repeat in step.actions:
            self._calls += spends(action, repeat)
            effect = action.effect
            works = effect.changes or effect.reads or action.operation.startswith("$")
            self._works = self._works or works

    def reading(self) -> tuple[float, str]:
        """0.6 at the budget, 1 at five thirds of it."""
        if not self._calls:
            return 0.0, ""
        budget = self._budget or (CALLS_OF_WORK if self._works else CALLS_OF_TALK)
        score = min(AT_BUDGET * self._calls / budget, 1.0)
        return score, f"{self._calls} calls of {budget} expected"


ONE_REVERT = 0.5  # undoing a change is ordinary work; undoing it a second time is not
FAILED_EDIT = 0.15  # score per edit of one file that failed in a row: the fourth fires


SLOWER = 0.5  # failures and reverts are remembered longer than repeats: `recovery` is nearer to 1


class _Decaying:
    """A score that decays while other things happen, and its reason."""

    __slots__ = ("_keep", "_score", "_what")

    def __init__(self, settings: RobustSettings) -> None:
        self._keep = settings.recovery + (1.0 - settings.recovery) * SLOWER
        self._score = 0.0
        self._what = ""

    def reading(self) -> tuple[float, str]:
        """The score, 0 when little is left of it."""
        return (self._score, self._what) if self._score >= 0.01 else (0.0, "")


class _File:
    __slots__ = ("edits", "failed", "reverts")

    def __init__(self) -> None:
        self.edits: deque[Edit] = deque(maxlen=REMEMBERED_EDITS)
        # The two texts of each change that was undone, newest last: parts of a file that are
        # restored one after the other are one decision.
        self.reverts: deque[frozenset[int]] = deque(maxlen=REMEMBERED_EDITS)
        self.failed = 0


class EditRevert(_Decaying):
    """Per file: content that returns to what it was, 0.5 for one revert and 1 from the second of
    one change; and failed attempts in a row, 0.15 each."""

    __slots__ = ("_files",)

    def __init__(self, settings: RobustSettings) -> None:
        super().__init__(settings)
        self._files: dict[str, _File] = {}

    def push(self, step: ObservedStep) -> None:
        """Compare each edit with the earlier ones of its file."""
        if not step.actions:
            self._score *= self._keep
        for action in [step.actions[at][0] for at in step.deliberate]:
            failed = action.failure is not None
            if action.program is not None and not failed:
                for file in self._files.values():
                    file.reverts.clear()  # it works: what comes next is another attempt
            wanted = step.facts.prompted
            found = [self._edit(edit, failed=failed, wanted=wanted) for edit in action.edits]
            self._score = max([self._score * self._keep, *found])

    def _edit(self, edit: Edit, *, failed: bool, wanted: bool) -> float:
        file = self._files[edit.path] = self._files.pop(edit.path, _File())
        if len(self._files) > REMEMBERED_FILES:
            del self._files[next(iter(self._files))]
        if failed:
            file.failed += 1
            self._what = f"{file.failed} edits of {edit.path[-60:]} failed in a row"
            return min(FAILED_EDIT * file.failed, 1.0)
        file.failed = 0
        back = goes_back(edit, file.edits)
        texts = frozenset((edit.new, edit.old or (file.edits[-1].new if file.edits else 0)))
        file.edits.append(edit)
        if not back or wanted:
            return 0.0
        file.reverts.append(texts)
        times = file.reverts.count(texts)
        self._what = f"{edit.path[-60:]} changed back {times} x"
        return ONE_REVERT if times < 2 else 1.0


T = TypeVar("T")
PER_RERUN = 0.3  # score per run that fails as before with nothing changed: the third fires
AFTER_CHANGE = 0.5  # a change that did not help counts half: work went on between the runs
FAILURE_WINDOW = 8  # newest actions whose failures are compared
PER_FAILURE = 0.2  # score per failure of one signature beyond the first: the fourth fires
PER_DENIAL = 0.12  # score per answer of the window that denies and has no new word: the fifth fires
REMEMBERED_PROGRAMS = 64  # programs whose last run is remembered: a bound on memory


class _Failure(Struct):
    """One call and the signature of its failure, None without one or when it is forgotten; and how
    many changes came before it."""

    signature: str | None
    action: ActionFacts
    changes: int


class TestRepeat(_Decaying):
    """Programs by what they execute, failures by signature; a pass clears its program."""

    __test__ = False
    __slots__ = ("_changes", "_denials", "_denied", "_failures", "_passed", "_programs")

    def __init__(self, settings: RobustSettings) -> None:
        super().__init__(settings)
        self._programs: dict[int, tuple[str, float, int]] = {}
        self._failures: deque[_Failure] = deque(maxlen=FAILURE_WINDOW)
        self._denials: deque[tuple[bool, str]] = deque(maxlen=FAILURE_WINDOW)
        self._denied: frozenset[str] = frozenset()
        self._changes = self._passed = 0

    def push(self, step: ObservedStep) -> None:
        """Compare each failure with the earlier ones."""
        if not step.actions:
            self._score *= self._keep
        for at in step.deliberate:
            (action, repeat), tells = step.actions[at], step.news.tells[at]
            found, what = max(
                self._program(action, repeat),
                self._failure(action, repeat, tells=tells),
                self._denial(action, repeat, tells=tells),
                key=itemgetter(0),
            )
            self._score *= self._keep
            if found >= self._score:
                self._score, self._what = found, what

    def _program(self, action: ActionFacts, repeat: Repeat) -> tuple[float, str]:
        if action.program is None:
            return 0.0, ""
        before = self._programs.pop(action.program, None)
        if action.failure is None:
            self._passed += repeat.kind == "new"
            return 0.0, ""
        # Between its runs no other program has passed for the first time: that is work.
        again = before is not None and before[::2] == (action.failure, self._passed)
        weight = 1.0 if repeat.unchanged_files else AFTER_CHANGE
        count = before[1] + weight if before is not None and again else 0.0
        self._programs[action.program] = (action.failure, count, self._passed)
        if len(self._programs) > REMEMBERED_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        what = f"{action.operation[:40]} fails as before: {action.failure[:80]}"
        return min(PER_RERUN * count, 1.0), what

    def _denial(self, action: ActionFacts, repeat: Repeat, *, tells: bool) -> tuple[float, str]:
        """Answers that deny and have no new word, whatever was asked or tried."""
        is_new, program = repeat.kind == "new", action.program is not None
        plain = action.failure is None and not (action.effect.reads or action.effect.changes)
        if plain and action.answer.negative and action.effect.looks_up and is_new:
            return 0.0, ""  # no is an answer to a new question: the run knows more
        denies = action.answer.negative and not (action.answer.empty or repeat.waits or program)
        if not denies and is_new and action.answer.tells:
            tells = True  # another question, and yes: the ones before were fair questions, too
        if not (denies or tells or program):
            return 0.0, ""  # an acknowledgement
        if tells and not denies:
            _forgive(self._denials, action.operation, fine=False)
        self._denials.append((denies and not tells, action.operation))
        if not denies or tells:
            return 0.0, ""
        objects = action.question.objects
        if is_new and action.failure and is_of_object(action.failure) and objects:
            known, self._denied = self._denied, objects
            if not objects <= known:
                return 0.0, ""  # of another host or table than the one before
        times = sum([1 for each, _ in self._denials if each])
        return min(PER_DENIAL * times, 1.0), f"{times} answers that deny, nothing new in them"

    def _failure(self, action: ActionFacts, repeat: Repeat, *, tells: bool) -> tuple[float, str]:
        failure = None if repeat.waits else action.failure
        if failure is None and not (tells or action.answer.tells or action.program is not None):
            return 0.0, ""  # an acknowledgement between two failures
        if failure is None:
            self._succeed(action, tells=tells)
        self._changes += failure is None and action.effect.changes
        self._failures.append(_Failure(failure, action, self._changes))
        if failure is None:
            return 0.0, ""
        same = [each for each in self._failures if each.signature == failure]
        times = len(same)
        score = PER_FAILURE * (times - 1)
        if action.program is not None:
            unchanged = sum([1 for each in same if each.changes == self._changes])
            score = max(score, PER_RERUN * (unchanged - 1))
        return min(score, 1.0), f"{times} x the same failure: {failure[:80]}"

    def _succeed(self, action: ActionFacts, *, tells: bool) -> None:
        """Forget the failures of an operation that brings news, and of the same edit or program."""
        applied, program = bool(action.edits), action.program is not None
        for each in self._failures:
            failed = each.action
            if each.signature is None:
                continue
            if tells and failed.operation == action.operation:
                each.signature = None
            elif (applied and failed.edits) or (program and failed.program is not None):
                same = failed.program == action.program if program else False
                if same or failed.question.objects & action.question.objects:
                    each.signature = None


def _forgive(calls: deque[tuple[T, str]], operation: str, *, fine: T) -> None:
    """Count the calls of an operation as fine: it fails now and then, with news in between."""
    for at, (found, name) in enumerate(calls):
        if name == operation and found != fine:
            calls[at] = (fine, name)


LITTLE_NEW = 0.2  # share of new words in a result below which it brings nothing new
HEALTHY_SHARE = 0.5  # half of the window may be stale without a score
SLOPE = 1.6  # seven stale actions of eight score 0.6


class Diversity:
    """Share of recent actions that are similar to a recent one and bring nothing new. Tool names do
    not matter: an agent with one tool that reads on is as diverse as one with ten."""

    __slots__ = ("_stale",)

    def __init__(self, settings: RobustSettings) -> None:
        self._stale: deque[bool] = deque(maxlen=settings.novelty_window)

    def push(self, step: ObservedStep) -> None:
        """Judge each action stale or not."""
        for (_, repeat), novelty in zip(step.actions, step.news.novelty, strict=True):
            progresses = repeat.kind == "pending" or repeat.changed
            self._stale.append(repeat.similar and not progresses and novelty < LITTLE_NEW)
        if self._stale and not step.actions and step.trouble is None:
            self._stale.append(False)

    def reading(self) -> tuple[float, str]:
        """1.6 x (stale share - 1/2), 0 until the window is full."""
        size = self._stale.maxlen or 1
        if len(self._stale) < size:
            return 0.0, ""
        stale = sum(self._stale)
        score = min(max(SLOPE * (stale / size - HEALTHY_SHARE), 0.0), 1.0)
        return score, f"{stale} of the last {size} calls brought nothing new" if score else ""


SHORT_THOUGHT_WORDS = 3  # shorter thoughts are not read: they have no density to speak of
EARLY_HEDGES = 0.5
EARLY_WORDS = 50  # prior of the early density: a first hedge is no trend
LEAST_DENSITY = 0.02  # hedges a word under which the newest thoughts are sure, whatever came before
RATIO_SPAN = 4.0  # late density of five times the early one scores 1; 3.4 times fires
RETRACTION_WINDOW = 8  # newest thoughts among which retractions are counted
ONE_RETRACTION = 0.3  # one self-correction is healthy
MORE_RETRACTIONS = 0.7  # a second one within the window fires


class Hedge:
    """Density of hedging in the newest thoughts against the run before them. Only thoughts with an
    action count: a message to a user hedges out of politeness. A trend needs hedges in all but one
    of the newest thoughts."""

    __slots__ = ("_early_hedges", "_early_words", "_late", "_retractions", "_size", "_thoughts")

    def __init__(self, settings: RobustSettings) -> None:
        self._size = settings.trend_window
        self._late: deque[tuple[int, int]] = deque()
        self._early_hedges = self._early_words = self._thoughts = 0
        self._retractions: deque[bool] = deque(maxlen=RETRACTION_WINDOW)

    def push(self, step: ObservedStep) -> None:
        """Observe the step's thought, if the step has an action."""
        facts = step.facts
        if not step.actions or facts.words < SHORT_THOUGHT_WORDS:
            return
        inquires = step.trouble is None and max(step.news.novelty) >= LITTLE_NEW
        self._retractions.append(facts.retracts and not inquires)
        self._late.append((0 if inquires else facts.hedges, facts.words))
        self._thoughts += 1
        if len(self._late) > self._size:
            hedges, words = self._late.popleft()
            self._early_hedges += hedges
            self._early_words += words

    def reading(self) -> tuple[float, str]:
        """The larger of the trend and of repeated retractions."""
        trend, reason = self._trend()
        retractions = sum(self._retractions)
        again = MORE_RETRACTIONS if retractions > 1 else ONE_RETRACTION * retractions
        if again > trend:
            return again, f"{retractions} retractions in the last {len(self._retractions)} thoughts"
        return trend, reason

    def _trend(self) -> tuple[float, str]:
        hedging = sum([1 for hedges, _ in self._late if hedges])
        if self._thoughts < 2 * self._size or hedging < self._size - 1:
            return 0.0, ""
        late = sum([h for h, _ in self._late]) / sum([w for _, w in self._late])
        if late < LEAST_DENSITY:
            return 0.0, ""
        early = (self._early_hedges + EARLY_HEDGES) / (self._early_words + EARLY_WORDS)
        score = min(max((late / early - 1.0) / RATIO_SPAN, 0.0), 1.0)
        return score, f"hedging {late / early:.1f} times as dense as before" if score else ""


class Stopped(_Decaying):
    """Whether the person has just stopped the agent for the third time within twelve steps; see
    `StepReader`. Answers to a question or a plan in plan mode are no stops."""

    __slots__ = ()

    def __init__(self, settings: RobustSettings) -> None:
        super().__init__(settings)
        self._keep = settings.recovery
        self._what = "the user stopped the agent 3 times within a few steps"

    def push(self, step: ObservedStep) -> None:
        """Look at what came before the step."""
        self._score = 1.0 if step.facts.cue == "stopped" else self._score * self._keep
