"""Counts how often people typed a rule before and since it was written down. No verdict."""

from collections import defaultdict
from collections.abc import Sequence
from math import inf

from gateway.core.pattern import Lesson, content
from gateway.features.history.session import HumanTurn, Session
from gateway.features.history.typed import TypedAgain, contradictions, own_messages, typed_again
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import approved
from gateway.steering.transcript.interventions import said_in
from gateway.steering.transcript.text_protocols import read_cue
from gateway.stores.learning import StoredLesson
from gateway.stores.sql.learning import LearningStore, SaidRow
from gateway.tasks import off_loop
from gateway.text.formatting import counted, iso
from gateway.text.sentences import nearly_equal, sentences
from gateway.values import Value

ROWS_AT_ONCE = 500


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
        since = f"{self.typed_since} in {self.sessions_since} since"
        return f"written down on {iso(self.at)[:10]}; {before} before, {since}"


Place = tuple[str, str, str]  # tenant, digest and name of a project


class Said:
    """The words of people in the sessions of a store."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}  # by conversation
        self.places: defaultdict[Place, list[Session]] = defaultdict(list)

    def add(self, rows: Sequence[SaidRow]) -> None:
        """Read the messages of these rows."""
        for row in rows:
            messages = row.content.messages
            name = row.conversation_id
            session = self._sessions.get(name)
            if session is None:
                session = Session(id=name, agent="", started=row.at, author=row.author)
                self._sessions[name] = session
                self.places[row.tenant, *project_of(messages)].append(session)
            texts = said_in([{"role": each.role, "content": each.text} for each in messages])
            refused = [act.words for act in row.content.human if act.kind == "reject"]
            for text in (*texts, *refused):
                if read_cue(text) != "compacted":
                    session.human.append(
                        HumanTurn(
                            kind="message", position=0, text=text, step=row.step_index, at=row.at
                        )
                    )

    def counts(self, rule: StoredLesson) -> TypedCounts:
        """The counts of one rule, over the sessions of its project."""
        lesson = rule.pattern.lesson or Lesson(key="||")
        wanted = (content(rule.pattern.fields).move, lesson.applies_when.get("said", ""))
        scope = lesson.key.split("|")[1]
        here = [each for place, own in self.places.items() if place[1] == scope for each in own]
        begun = [each.started or 0.0 for each in here]
        typed = [
            turn.at or 0.0
            for turn, _ in own_messages(here)
            if any(nearly_equal(part, each) for part in sentences(turn.text) for each in wanted)
        ]
        written = None
        end = inf
        if approved(rule):
            written = end = rule.updated_at
        typed_before = sum(at < end for at in typed)
        sessions_before = sum(at < end for at in begun)
        return TypedCounts(
            at=written,
            typed_before=typed_before,
            sessions_before=sessions_before,
            typed_since=len(typed) - typed_before,
            sessions_since=len(begun) - sessions_before,
        )

    def typed(self) -> dict[Place, list[TypedAgain]]:
        """Sentences of several sessions of a project, and those that contradict each other."""
        found = {}
        for place, own in self.places.items():
            newest = sorted(own, key=lambda each: each.started or 0.0, reverse=True)
            if entries := [*typed_again(newest), *contradictions(newest)]:
                found[place] = entries
        return found


async def read_said(store: LearningStore, tenant: str | None) -> Said:
    """Read the words of people in all sessions of the tenant, None: of all; sub-agents, forks and
    forgotten runs are left out. Raises: StoreError."""
    said = Said()
    newest = (-1, -1)
    while rows := await store.said(tenant, newest, limit=ROWS_AT_ONCE):
        await off_loop(said.add, rows)
        newest = (rows[-1].run_pk, rows[-1].step_index)
    return said


async def count_typed(
    store: LearningStore, rules: Sequence[StoredLesson], tenant: str | None
) -> dict[str, TypedCounts]:
    """The counts of rules, by their ids."""
    if not rules:
        return {}
    said = await read_said(store, tenant)
    return await off_loop(lambda: {each.pattern.pattern_id: said.counts(each) for each in rules})
