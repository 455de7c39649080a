"""The trouble of a run's newest step, with its cause, and the reader that finds it in texts.

The reader in use is `READER` of `gateway/steering/guidance/situation.py`."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import field

from gateway.core.ledger.ledger import LedgerStep
from gateway.core.step import Describe, Step
from gateway.values import Value

FAILED_AGAIN = 2  # equal failures that are trouble; a first failure is ordinary work
SHOWN_AGAIN = 3  # equal results that are trouble; looking a second time is ordinary work
COUNTED = 2  # from how many times on a text says how often; "1 x" says nothing


class Cause(Value):
    """One kind of trouble, as a table of `causes.json` states it."""

    name: str = field(name="cause")  # the id by which patterns and records name it
    when: str  # failed, repeated, waiting, reworded, undone or talk
    # a property that the call must have, or, with `!` in front, must not have; "" = any call
    needs: str = ""
    # by language, in lower case: one of them is in the message; empty = any message
    words: Mapping[str, tuple[str, ...]] = {}
    # sentence on the event for few occurrences, and that for COUNTED or more
    openings: tuple[str, str] = ("", "")
    texts: tuple[str, ...]  # the move to suggest at severity 1, 2, ...


class Situation(Value):
    """Trouble of the newest step."""

    cause: Cause  # the kind of trouble
    count: int = 1  # how often it has come in the run, from 1
    quote: str = ""  # the decisive line of the newest result, or the agent's words; "" for none
    near: str = ""  # a sentence about a near miss; "" for none
    instead: str = ""  # the move that the near miss suggests; "" for none

    @property
    def persists(self) -> bool:
        """True if it is trouble by itself, without a monitor that says so."""
        return self.count >= (FAILED_AGAIN if self.cause.when == "failed" else SHOWN_AGAIN)

    def text(self, severity: int) -> str:
        """Text for a severity from 1 on: the event, the near miss, and one move."""
        texts = self.cause.texts
        move = texts[min(severity, len(texts)) - 1]
        return " ".join(part for part in (self.event, self.near, self.instead or move) if part)

    def unquoted(self) -> "Situation":
        """The same without a word of the run."""
        return Situation(cause=self.cause, count=self.count)

    @property
    def event(self) -> str:
        """One sentence on the event; "" where there are no words for it."""
        opening = self.cause.openings[self.count >= COUNTED]
        event = opening.replace("{count}", str(self.count))
        shown = self.quote.replace('"', "'")
        # Without a quote the part that needs one is left out.
        return event.replace(": {quote}", f': "{shown}"' if shown else "")


class Reader(Value):
    """Reads what agents and tools wrote. Each function is pure and never raises."""

    describe: Describe  # the facts of a step
    # trouble of the newest of the steps, and that step as the run's ledger has read it, if it is
    # known; None when it brings something new
    situation: Callable[[Sequence[Step], LedgerStep | None], Situation | None]
