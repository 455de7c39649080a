"""The ledger of one run: each step's calls against what was tried before.

A call fails, repeats, waits or brings news. What fails or repeats joins the entry of its object;
what succeeds closes it. A batch of calls is one try of each entry. Memory is bounded, and a late
step costs what an early one does."""

from collections import deque
from copy import copy

from gateway.core.ledger.entries import (
    PATIENCE,
    Clock,
    Ending,
    Entries,
    Entry,
    failing,
    failure_key,
    is_about,
    keep_newest,
    quoted,
    refusal_key,
    settles,
    without_number,
)
from gateway.core.ledger.files import Files
from gateway.core.ledger.repeated_messages import Messages
from gateway.core.ledger.sameness import (
    LISTS,
    TELLING_RESULT,
    SeenCall,
    ShownLines,
    brings_the_same,
    does_the_same,
    is_act,
    lists_the_same,
    shows_all,
)
from gateway.core.ledger.tries import Kind, Tries, Try
from gateway.core.step import Action, ActionFacts, Describe, Step, StepFacts
from gateway.values import Value

COMPARED = 8  # newest calls that a call is compared with
EQUAL_RESULTS = 3  # newest of them with the same result whose arguments are compared
MAX_CALLS = 256  # calls whose newest result is remembered: a bound on memory
WAITS = 20  # equal answers after which waiting is a repetition
REREAD = 1  # calls with news after which other known parts of a file are another matter
LAST_NUMBERS = 8  # tries of a failure whose numbers are compared
LEFT = 4  # calls with news after which a failure is no longer worked on
CYCLES = 3
LONGEST_CYCLE = 4  # rounds of a cycle that count, and its most calls
SAID_CHARS = 120  # longest line of a failure that is kept for people


class LedgerStep(Value):
    """A step against the run before it."""

    step: Step  # as it stands in the transcript
    facts: StepFacts  # digests and word sets of its calls, results and thought
    number: int  # the step's number in the run, from 1
    actions: Tries  # each call with what the ledger found about it, in the order of the reply
    # the entry with repeated failures that a success of this step closed
    closed: Entry | None = None
    # the repeated failure that the run works on, if this step is no try of it
    open_failure: Entry | None = None
    # true if files were edited since the last test that passed and the last commit
    repairing: bool = False
    entries: tuple[Entry, ...] = ()  # the entries that the step added a try to

    @property
    def waits(self) -> bool:
        """True if every call of the step waits for something."""
        return bool(self.actions) and not [1 for _, each in self.actions if each.kind != "pending"]

    @property
    def reverts(self) -> bool:
        """True if an edit of the step takes an earlier one back."""
        return any(entry.ending is Ending.REVERTED for entry in self.entries)

    @property
    def trouble(self) -> str | None:
        """The end of the newest repeated try; None for a step that brings something new."""
        found = [entry for entry in self.entries if entry.count > 1]
        return found[-1].ending.value if found else None


class _Past(Value):
    """The newest result of one call."""

    result: int  # its digest, see `sameness`
    failure: str | None  # signature of the failure; None when it did not fail
    number: int  # of the call in the run
    step: int  # of the call
    count: int  # how often it came since something changed
    changes: int  # changes of the run by then

    def gave(self, facts: ActionFacts) -> bool:
        """True if the call has ended in this way before."""
        if facts.failure is not None:
            return self.failure == facts.failure
        return self.failure is None and self.result == facts.answer.result


class Ledger:
    """The ledger of one run. `describe` reads the facts of its steps; `steps`: those of the run
    before the first one that is observed."""

    def __init__(self, describe: Describe, steps: int = 0):
        self._describe = describe
        self._clock = Clock(step=steps)
        self._entries = Entries(self._clock)
        self._calls: dict[int, _Past] = {}
        self._recent: deque[SeenCall] = deque(maxlen=COMPARED)
        self._turns: deque[tuple[int, int]] = deque(maxlen=CYCLES * LONGEST_CYCLE)
        self._acts: dict[str, int] = {}  # number of the newest new act of each tool
        self._shown = ShownLines()
        self._files = Files()
        self._messages = Messages()
        self._failing: Entry | None = None
        self._closed: Entry | None = None
        self._same_failures = 1  # failures in the same way as the newest call's, with it
        self._acted = False
        self._repairing = False

    def observe(self, step: Step) -> LedgerStep:
        """The next step of the run. Never raises."""
        facts = self._describe(step)
        clock = self._clock
        clock.step += 1
        self._closed = None
        if step.cue == "compacted":
            self._recent.clear()
            self._shown = ShownLines()
        tries = [
            (each, self._try(action, each, asked=facts.prompted))
            for action, each in zip(step.actions, facts.actions, strict=True)
        ]
        said = None if tries else self._say(step, facts)
        entries = [each.entry for _, each in tries if each.entry is not None]
        if said is not None:
            entries.append(said)
        self._acted = bool(tries)
        failing = self._failing
        if failing is not None and clock.news - failing.news > LEFT:
            self._failing = failing = None
        open_failure = None
        if failing is not None and failing.newest != clock.step:
            open_failure = copy(failing)
        return LedgerStep(
            step=step,
            facts=facts,
            number=clock.step,
            actions=tuple(tries),
            closed=self._closed,
            open_failure=open_failure,
            repairing=self._repairing,
            entries=tuple(entries),
        )

    def _try(self, action: Action, facts: ActionFacts, *, asked: bool) -> Try:
        """Read one call, remember it, and let it open, join or close entries. `asked`: a person
        has just spoken, and may want what was done before."""
        if facts.answer.cancelled:
            return Try(kind="cancelled")
        clock = self._clock
        clock.calls += 1
        if facts.effect.waits:
            clock.waited = clock.calls
        past = self._calls.pop(facts.call, None)
        gave = past is not None and past.gave(facts)
        looks_again = past is not None and past.number < clock.waited
        unmoved = None
        if past is not None and past.changes != clock.changes:
            unmoved = self._unmoved(action, facts, past, gave=gave)
        same = past is not None and gave and (past.changes == clock.changes or looks_again)
        if past is not None and same:  # unless another tool has done something new since then
            same = not [t for t, at in self._acts.items() if at > past.number and t != facts.tool]
        count = past.count + 1 if past is not None and same else 1
        kind: Kind = "pending"
        entry = None
        self._same_failures = 1
        if not (same and looks_again and count <= WAITS):
            seen = past if same else None
            kind, entry = self._read(action, facts, seen, asked=asked)
            if entry is None and kind == "new" and past is not None and not asked:
                entry = unmoved or self._in_turn(facts)
        self._remember(action, facts, count)
        if kind == "new":
            clock.news += 1
            if facts.effect.acts:
                self._acts[facts.tool] = clock.calls
                keep_newest(self._acts, MAX_CALLS)
        return Try(
            kind=kind,
            count=count,
            failures=self._same_failures if facts.failure is not None else 0,
            entry=None if entry is None else copy(entry),
        )

    def _unmoved(
        self, action: Action, facts: ActionFacts, past: _Past, *, gave: bool
    ) -> Entry | None:
        """The entry of a call whose result does not move, although the file that it shows was
        edited, or one line was set to another text."""
        key = f"unmoved {facts.call}"
        edited = self._files.edited(past.step)
        if not gave or facts.failure is not None:
            self._entries.close(key)
        elif edited and (self._files.one_place or shows_all(action, facts, edited)):
            return self._entries.add(key, Ending.UNMOVED, facts, since=past.step)
        return None

    def _remember(self, action: Action, facts: ActionFacts, count: int) -> None:
        clock = self._clock
        self._calls[facts.call] = _Past(
            result=facts.answer.result,
            failure=facts.failure,
            number=clock.calls,
            step=clock.step,
            count=count,
            changes=clock.changes,
        )
        keep_newest(self._calls, MAX_CALLS)
        self._recent.append(self._seen(action, facts))
        result = 0 if facts.failure is not None else facts.answer.result
        self._turns.append((hash((facts.call, result)), clock.step))

    def _seen(self, action: Action, facts: ActionFacts) -> SeenCall:
        clock = self._clock
        return SeenCall(action=action, facts=facts, step=clock.step, changes=clock.changes)

    def _read(
        self, action: Action, facts: ActionFacts, past: _Past | None, *, asked: bool
    ) -> tuple[Kind, Entry | None]:
        """The kind of a call, and the entry that it joins. `past`: the same call with the same
        result, and nothing changed since."""
        answer = facts.answer
        effect = facts.effect
        if answer.by_user:
            return "new", None
        if facts.failure is None:
            self._settle(action, facts)
        if effect.waits:
            self._entries.close(f"later {facts.tool}")
        failed_wait = answer.pending and facts.failure is not None
        if failed_wait or (answer.transient and not effect.changes):
            return "pending", self._entries.add(f"later {facts.tool}", Ending.LATER, facts)
        count = past.count + 1 if past is not None else 1
        if answer.pending and not effect.changes and count <= WAITS:
            return "pending", None
        if facts.failure is not None:
            return "failed", self._fail(action, facts)
        if facts.denied and past is None:
            entry = self._fail_in_a_row(facts)
            entry.said = ""
            return "failed", entry
        again = self._change(action, facts, changed=past is None, asked=asked)
        if again is not None:
            return "new", again
        if asked:
            return "new", None
        return self._compare(action, facts, past)

    def _compare(
        self, action: Action, facts: ActionFacts, past: _Past | None
    ) -> tuple[Kind, Entry | None]:
        """A call that reached something, against the results that the run has."""
        span = facts.span
        if span and (shown := self._shown.show(span, self._clock.step, self._clock.changes)):
            key = f"lines {span[0]}"
            entry = self._entries.add(key, Ending.SAME, facts, since=shown, patience=REREAD)
            entry.varied = True  # parts of it
            return "reworded", entry
        if past is not None:
            return "same", self._repeat(facts, past.step)
        call = self._seen(action, facts)
        recent = self._recent if is_act(facts) else ()
        alike = [each for each in recent if each.facts.operation == facts.operation]
        done = [each.step for each in alike if does_the_same(call, each)]
        if done:
            key = f"again {facts.operation}"
            again = self._entries.add(key, Ending.REWRITTEN, facts, since=max(done), patience=0)
            again.varied = True
            return "reworded", again
        equal = [
            each
            for each in self._recent
            if each.facts.answer.result == facts.answer.result
            or (facts.answer.empty and each.facts.answer.empty)
        ]
        newest = equal[-EQUAL_RESULTS:]
        known = [each.step for each in newest if brings_the_same(call, each)]
        if facts.operation in LISTS:
            known += [each.step for each in self._recent if lists_the_same(call, each)]
        if known:
            entry = self._repeat(facts, max(known))
            entry.varied = True
            return "reworded", entry
        return "new", None

    def _repeat(self, facts: ActionFacts, since: int) -> Entry:
        """The entry of a result that the run has, or that of several of them in a row."""
        answer = facts.answer
        key = f"same {answer.result}"
        if answer.empty:
            key = f"empty {facts.operation}"
        elif len(answer.words) < TELLING_RESULT:
            key = f"same {facts.operation} {answer.result}"
        entry = self._entries.add(key, Ending.SAME, facts, since=since)
        in_a_row = self._entries.add("nothing new", Ending.NOTHING_NEW, facts, patience=0)
        return in_a_row if in_a_row.count > entry.count else entry

    def _in_turn(self, facts: ActionFacts) -> Entry | None:
        """The entry of several calls that came in turn, with the same results each time."""
        turns = [turn for turn, _ in self._turns]
        result = 0 if facts.failure is not None else facts.answer.result
        turns.append(hash((facts.call, result)))
        for size in range(2, LONGEST_CYCLE + 1):
            rounds = turns[-CYCLES * size :]
            if len(rounds) < CYCLES * size or rounds[size:] != rounds[:-size]:
                continue
            first = self._turns[-CYCLES * size + 1][1]
            key = f"in turn {hash(frozenset(rounds))}"
            entry = self._entries.add(key, Ending.IN_TURN, facts, since=first)
            entry.count = max(entry.count, CYCLES)
            return entry
        return None

    def _fail(self, action: Action, facts: ActionFacts) -> Entry:
        """The entry of a failure; that of its tool, if that has failed more often in a row."""
        failure = facts.failure or ""
        if facts.edits:
            entry = self._entries.add(refusal_key(action, facts), Ending.REFUSED, facts)
        else:
            key = failure_key(action, facts)
            known = self._entries.get(key)
            number = failing(failure)
            if known is not None and known.recovers(number):
                self._entries.close(key)
            patience = PATIENCE if known is None or is_about(known, facts) else 0
            entry = self._entries.add(key, Ending.FAILED, facts, patience=patience)
            entry.numbers = (*entry.numbers[-LAST_NUMBERS:], number)
        entry.said = without_number(failure)[:SAID_CHARS]
        if facts.of_object and entry.count < 2:
            return entry  # another host or table is another question
        self._same_failures = entry.count
        known = self._entries.get(f"denied {facts.tool}")
        if entry.count == 1 and known is not None and known.call == facts.call:
            return entry  # the same call, which fails in another way: something moves
        in_a_row = self._fail_in_a_row(facts)
        in_a_row.said = entry.said
        if entry.count == 1:
            self._clock.news += 1  # a failure that the run did not have tells something
            entry.news = self._clock.news
            in_a_row.news = self._clock.news
        if entry.count < in_a_row.count:
            entry = in_a_row
        if entry.count > 1 and entry.ending is not Ending.DENIED:
            self._failing = entry
        return entry

    def _fail_in_a_row(self, facts: ActionFacts) -> Entry:
        """Returns the entry of a tool whose calls have all failed since its last success, while
        no other tool brought news."""
        return self._entries.add(f"denied {facts.tool}", Ending.DENIED, facts, patience=0)

    def _settle(self, action: Action, facts: ActionFacts) -> None:
        """Close the entries that a call which did not fail ends."""
        for entry in self._entries:
            if entry.ending is Ending.REVERTED and facts.program is not None:
                self._entries.close(entry.key)  # it works: what comes next is another attempt
            if not entry.is_failure or not settles(entry, action, facts):
                continue
            self._entries.close(entry.key)
            if entry is self._failing:
                self._failing = None
            if entry.count > 1 and entry.ending in (Ending.FAILED, Ending.REFUSED):
                self._closed = entry

    def _change(
        self, action: Action, facts: ActionFacts, *, changed: bool, asked: bool
    ) -> Entry | None:
        """Note what a call changes; the entry of an edit that sets the same again or takes an
        earlier one back."""
        found = None
        for edit in facts.edits:
            again = self._files.edit(edit, self._clock.step)
            if again is None or asked:
                continue
            ending = Ending.REVERTED if again.reverts else Ending.SET_AGAIN
            since = 0 if again.reverts else again.since
            found = self._entries.add(again.key, ending, facts, since=since)
            if not edit.path.startswith(":"):  # some editors name lines only
                found.named = quoted(edit.path)
            found.varied = False
        if facts.effect.changes and changed:
            self._clock.changes += 1
        if facts.edits or facts.effect.settles:
            self._repairing = not facts.effect.settles
        return found

    def _say(self, step: Step, facts: StepFacts) -> Entry | None:
        """The entry of a message that says an earlier one again. A question after work is none."""
        again = self._messages.say(facts, self._clock.step)
        if again is None or (self._acted and (facts.asks or facts.prompted)):
            return None
        key, since = again
        entry = self._entries.open(key, Ending.SAID_AGAIN, since=since)
        entry.named = quoted(step.thought)
        return copy(entry)
