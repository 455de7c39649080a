"""The ledger of a session: settings and claims that return over its runs, a person's stops.

Only what is exactly equal counts; whether words mean the same is not asked here."""

import re
from collections.abc import Iterator

from msgspec import Struct

from gateway.core.ledger.entries import keep_newest, ordinal, quoted
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.step import ActionFacts

SET_AGAIN = 3
# Times that something was set to the same value, or claimed, from which it is an alarm.
CLAIMED_AGAIN = 3
STOPPED = "the person stopped the agent three times within twelve steps"
# Words from which a closing message is a claim; a shorter one is a form of words.
CLAIM_WORDS = 6
REMEMBERED = 256  # settings and claims that are remembered: a bound on memory
_SETS = re.compile(  # commands that give a name a value
    r"\b(?:git\s+remote\s+(?:add|set-url)|git\s+config\s+(?!--get|--list|-l)\S+\s+\S"
    r"|(?:npm|pnpm|yarn|gcloud|kubectl|aws|az|gh|heroku|flyctl|fly|vercel|netlify|pip|dotnet)\s+"
    r"(?:config\s+set|set\b|config:set|secrets?\s+set|env\s+add|variable\s+set)"
    r"|(?:defaults|vault\s+kv|launchctl)\s+(?:write|put|setenv)|sysctl\s+-w|setx\s)"
)


class Returned(Struct, kw_only=True):
    """One thing that came more than once in a session."""

    key: str  # of the object or message, stable through the session
    what: str  # it, in words that a count can follow
    count: int = 0  # times that it came
    run: int = -1  # run of the newest time
    first_run: int = 0  # run of the first time, from 1
    first: int = 0  # step of that run
    newest: int = 0  # step of the newest time, in its run

    @property
    def sentence(self) -> str:
        """The thing that returned, how often, and where it began."""
        if self.count == 1:
            return f"{self.what}, up to step {self.newest}"
        where = f"first in run {self.first_run}, step {self.first}; now step {self.newest}"
        return f"{self.what}, for the {ordinal(self.count)} time in this session, {where}"


class SessionLedger:
    """The ledger of one session; it is given the steps of all its runs in order."""

    def __init__(self) -> None:
        self._known: dict[str, Returned] = {}
        self._claimed: Returned | None = None

    def observe(self, read: LedgerStep, run: int) -> list[Returned]:
        """The things that return with the next step of run `run`."""
        found = []
        claimed = self._claimed
        self._claimed = None
        # One form of answer to different wishes is no claim that is made again.
        if claimed is not None and not read.facts.prompted:
            claimed.newest = read.number
            found.append(claimed)
        if read.facts.cue == "stopped":
            found.append(self._count("stopped", STOPPED, run, step=read.number))
        for facts, each in read.actions:
            if facts.failure is not None or each.kind == "cancelled" or facts.answer.by_user:
                continue
            if read.facts.prompted or read.number == 1:
                continue  # a person may want it so once more
            for key, what in _settings(facts):
                known = self._known.get(key)
                # A run that sets it again counts once.
                if known is None or known.run != run:
                    found.append(self._count(key, what, run, step=read.number))
        if not found:
            return found
        return [each for each in found if each.key == "stopped" or each.count >= SET_AGAIN]

    def claim(self, text: str, run: int, step: int) -> None:
        """Take the message that ended a run; it returns with the next step."""
        words = text.lower().split()
        if len(words) < CLAIM_WORDS:
            return
        key = f"claim {hash(tuple(words))}"
        claimed = self._count(key, f"the run ends with {quoted(text)}", run, step=step)
        if claimed.count >= CLAIMED_AGAIN:
            self._claimed = claimed

    def _count(self, key: str, what: str, run: int, step: int) -> Returned:
        known = self._known.pop(key, None)
        if known is None:
            known = Returned(key=key, what=what, first_run=run + 1, first=step)
        known.count += 1
        known.run = run
        known.newest = step
        self._known[key] = known
        keep_newest(self._known, REMEMBERED)
        return known


def _settings(facts: ActionFacts) -> Iterator[tuple[str, str]]:
    """The values that a call sets: a key of name and value, and words for both."""
    for edit in facts.edits:
        what = f"{quoted(edit.path)} is set to the same text"
        yield f"set {edit.path} {hash(str(edit.new))}", what
    command = facts.command
    if command and _SETS.search(command[:400]):
        name = command.rsplit(None, 1)[0]
        yield f"set {name} {hash(command)}", f"{quoted(command)} is run"
