"""Counts how often people typed a rule before and since it was written down. No verdict."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from gateway.core.pattern import Lesson, content
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import approved
from gateway.steering.transcript.interventions import said_in
from gateway.steering.transcript.text_protocols import read_cue
from gateway.stores.learning import StoredLesson
from gateway.stores.sql.learning import LearningStore, SaidRow
from gateway.tasks import off_loop
from gateway.text.formatting import counted
from gateway.text.sentences import nearly_equal, sentences
from gateway.values import Value

ROWS_AT_ONCE = 500
TEMPLATE_CHARS = 500  # a longer text that begins alike in two sessions is no person's


class TypedCounts(Value):
    """Times that people typed a rule, and sessions of its project, before and since its date."""

    at: float | None = None  # epoch seconds of the date; None: not written down, all is before
    typed_before: int = 0  # messages with a nearly equal sentence
    sessions_before: int = 0  # sessions that began before the date
    typed_since: int = 0  # such messages since the date
    sessions_since: int = 0  # sessions that began since then

    def __str__(self) -> str:
        before = f"typed {counted(self.typed_before, 'time')} in "
        before += counted(self.sessions_before, "session")
        if self.at is None:
            return before
        day = datetime.fromtimestamp(self.at, UTC).date()
        since = f"{self.typed_since} in {self.sessions_since} since"
        return f"written down on {day}; {before} before, {since}"


class _Said:
    """The words of people in the sessions of a store."""

    def __init__(self) -> None:
        # of each session the digest of its project, and the epoch seconds of its first row
        self.sessions: dict[str, tuple[str, float]] = {}
        # sessions by the beginning of a text
        self.heads: defaultdict[str, set[str]] = defaultdict(set)
        # session, epoch seconds, the text, and its sentences
        self.texts: list[tuple[str, float, str, list[str]]] = []

    def add(self, rows: Sequence[SaidRow]) -> None:
        """Read the messages of these rows."""
        for row in rows:
            session = row.conversation_id
            messages = row.content.messages
            self.sessions.setdefault(session, (project_of(messages)[0], row.at))
            texts = said_in([{"role": each.role, "content": each.text} for each in messages])
            refused = [act.words for act in row.content.human if act.kind == "reject"]
            for text in (*texts, *refused):
                self.heads[text[:TEMPLATE_CHARS]].add(session)
                if read_cue(text) != "compacted":
                    self.texts.append((session, row.at, text, sentences(text)))

    def counts(self, rule: StoredLesson) -> TypedCounts:
        """The counts of one rule, over the sessions of its project."""
        lesson = rule.pattern.lesson or Lesson(key="||")
        wanted = (content(rule.pattern.fields).move, lesson.applies_when.get("said", ""))
        scope = lesson.key.split("|")[1]
        begun = {name: at for name, (project, at) in self.sessions.items() if project == scope}
        typed = [
            at
            for session, at, text, parts in self.texts
            if session in begun and not self._is_template(text)
            if any(nearly_equal(part, each) for part in parts for each in wanted)
        ]
        written = None
        end = math.inf
        if approved(rule):
            written = end = rule.updated_at
        typed_before = sum(at < end for at in typed)
        sessions_before = sum(at < end for at in begun.values())
        return TypedCounts(
            at=written,
            typed_before=typed_before,
            sessions_before=sessions_before,
            typed_since=len(typed) - typed_before,
            sessions_since=len(begun) - sessions_before,
        )

    def _is_template(self, text: str) -> bool:
        head = text[:TEMPLATE_CHARS]
        return len(head) == TEMPLATE_CHARS and len(self.heads[head]) > 1


async def count_typed(
    store: LearningStore, rules: Sequence[StoredLesson], tenant: str | None
) -> dict[str, TypedCounts]:
    """The counts of rules, by their ids. Reads what people said in all sessions of the tenant;
    sub-agents, forks and forgotten runs are left out."""
    said = _Said()
    newest = (-1, -1)
    while rules:
        rows = await store.said(tenant, newest, limit=ROWS_AT_ONCE)
        if not rows:
            break
        await off_loop(said.add, rows)
        newest = (rows[-1].run_pk, rows[-1].step_index)
    return await off_loop(lambda: {each.pattern.pattern_id: said.counts(each) for each in rules})
