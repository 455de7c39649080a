"""Pages of ordered lists: of runs, and of conversations."""

import binascii
import json
from base64 import b64decode, urlsafe_b64encode

import msgspec

from gateway.stores.health import Spread
from gateway.stores.records import ConversationAbout
from gateway.stores.totals import RunRecord
from gateway.values import Value, frozen

MAX_PAGE = 1000

# The sort keys of a list of runs; an unknown cost sorts below zero.
SORT_KEYS = ("started_at", "updated_at", "duration", "steps", "tokens", "cost", "peak")


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
        if self.cursor is None:
            return None
        return decode_cursor(self.cursor)

    @property
    def order(self) -> tuple[str, str]:
        """The order of the list in SQL, and the sign between a row and the one before it."""
        if self.descending:
            return "DESC", "<"
        return "ASC", ">"


def encode_cursor(value: float, key: str) -> str:
    """A position in an ordered list as opaque text."""
    return urlsafe_b64encode(json.dumps([value, key]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[float, str]:
    """The arguments of `encode_cursor`. Raises: ValueError for any other text."""
    try:
        raw = b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        return msgspec.json.decode(raw, type=tuple[int | float, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise ValueError("cursor: not one of this server's") from error


@frozen
class RunPage:
    """One page of a list of runs."""

    runs: tuple[RunRecord, ...]  # in the order that was asked for
    next_cursor: str | None  # None on the last page


class NewestRuns(Value):
    """The newest runs that a filter selects, at most SPREAD_RUNS."""

    spread: Spread  # of these runs
    sessions: tuple[str, ...]  # their ids, in no order
    every: bool  # no other run matches
    oldest: float  # epoch seconds, shortly after which no more of them started; 0 without any


class ConversationSummary(ConversationAbout):
    """One conversation without its state."""

    version: int  # counts its commits
    runs: int  # number of its runs that are stored


class ConversationPage(Value):
    """One page of a list of conversations."""

    conversations: tuple[ConversationSummary, ...]  # newest first
    next_cursor: str | None  # None on the last page
