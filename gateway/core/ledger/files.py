"""Edits of files: finds those that take an earlier one back, or set the same value again."""

from collections import deque
from collections.abc import Sequence

from gateway.core.ledger.entries import keep_newest
from gateway.core.step import FileEdit
from gateway.values import Value

REMEMBERED_EDITS = 8  # newest edits of a file that a later one is compared with
REMEMBERED_FILES = 64  # files whose edits are remembered, the latest edited ones


class EditedAgain(Value):
    """An edit against the earlier ones of its file."""

    key: str  # of the entry that it belongs to
    reverts: bool  # it takes an earlier edit back, and does not only set the same once more
    since: int  # step of the edit before


class Files:
    """The newest edits of each file, within a bounded memory."""

    def __init__(self) -> None:
        self._edits: dict[str, deque[tuple[FileEdit, int]]] = {}
        # True if the newest edit replaced what the edit before had put into one line.
        self.one_place = False

    def edited(self, since: int) -> str:
        """The file that was edited last, if that was after step `since`; else ""."""
        path = next(reversed(self._edits), "")
        return path if path and self._edits[path][-1][1] > since else ""

    def edit(self, edit: FileEdit, step: int) -> EditedAgain | None:
        """Remember an edit. Returns what it repeats or takes back, or None if it does neither."""
        seen = self._edits.pop(edit.path, None) or deque(maxlen=REMEMBERED_EDITS)
        earlier = [each for each, _ in seen]
        newest = seen[-1][0] if seen else None
        since = seen[-1][1] if seen else 0
        one_line = edit.is_line and newest is not None
        self.one_place = one_line and newest is not None and newest.new == edit.old != 0
        found = None
        if _goes_back(edit, earlier):
            texts = frozenset((edit.new, edit.old or (newest.new if newest else 0)))
            key = f"reverted {edit.path} {hash(texts)}"
            found = EditedAgain(key=key, reverts=True, since=since)
        elif newest is not None and not edit.old and newest.new == edit.new:
            found = EditedAgain(key=f"set {edit.path}", reverts=False, since=since)
        seen.append((edit, step))
        self._edits[edit.path] = seen
        keep_newest(self._edits, REMEMBERED_FILES)
        return found


def _goes_back(edit: FileEdit, earlier: Sequence[FileEdit]) -> bool:
    """True if an edit restores what an earlier one of the same file replaced; newest last."""
    if edit.old and edit.new:
        return any(past.old == edit.new and past.new == edit.old for past in earlier)
    if not edit.new or not earlier or earlier[-1].new == edit.new:
        return False
    return any(past.new == edit.new for past in earlier)
