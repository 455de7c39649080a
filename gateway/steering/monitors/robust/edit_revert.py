"""Edit revert: changes that undo each other, and edits that do not apply."""

from __future__ import annotations

from collections import deque

from gateway.steering.evidence.edits import Edit, goes_back
from gateway.steering.evidence.observation import REMEMBERED_EDITS, REMEMBERED_FILES, ObservedStep
from gateway.steering.monitors.settings import RobustSettings

ONE_REVERT = 0.5  # undoing a change is ordinary work; undoing it a second time is not
FAILED_EDIT = 0.15  # score per edit of one file that failed in a row: the fourth fires
SLOWER = 0.5  # reverts are remembered longer than repeats: the rest of the way from `recovery` to 1


class _File:
    __slots__ = ("edits", "failed", "reverts")

    def __init__(self) -> None:
        self.edits: deque[Edit] = deque(maxlen=REMEMBERED_EDITS)
        # The two texts of each change that was undone, newest last: parts of a file that are
        # restored one after the other are one decision.
        self.reverts: deque[frozenset[int]] = deque(maxlen=REMEMBERED_EDITS)
        self.failed = 0


class EditRevert:
    """Per file: content that returns to what it was, and failed attempts in a row."""

    __slots__ = ("_files", "_keep", "_score", "_what")

    def __init__(self, settings: RobustSettings) -> None:
        self._files: dict[str, _File] = {}
        self._keep = settings.recovery + (1.0 - settings.recovery) * SLOWER
        self._score = 0.0
        self._what = ""

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

    def reading(self) -> tuple[float, str]:
        """0.5 for one revert, 1 from the second of one change; 0.15 per failed edit in a row."""
        return (self._score, self._what) if self._score >= 0.01 else (0.0, "")
