"""Sentences that people typed in several sessions, as they typed them.

Nothing is made of them: which of them is a wish is for a reader to say. Two sentences belong
together if they share two words that recur in the project, of which one says how work is done (a
table in `typed_words.toml`) or is a name that English does not have; or if all their recurring
words are the same. One that denies something belongs to none that does not. No weight is fitted:
days, sessions and dates give the order."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import TypeVar

from msgspec.structs import replace

from gateway.data_files import read_text
from gateway.features.history.reading import SessionReading
from gateway.features.history.session import HumanTurn, Session
from gateway.text.formatting import iso_or_none
from gateway.text.sentences import content_words, meaning, nearly_equal, singular
from gateway.text.typed_not_pasted import TABLE, typed_sentences
from gateway.values import FieldDict, Value

MOST_TYPED = 10  # entries of one project
WORDINGS = 5  # of an entry that are shown, the newest of each session
_TEMPLATE = 500  # characters by which a text of a program is known again
_LEAST = 200  # characters of a text that nobody types twice in the same words
_WORK = frozenset(TABLE["work"].split())
_OPPOSITES = {word: pair for pair in TABLE["opposites"] for word in pair.split()}
_DAY_S = 86_400


class Typed(Value):
    """A sentence that a person typed."""

    words: str  # as they were typed, with secrets masked
    session: SessionReading | Session  # it was typed in
    step: int  # index of the answer that it followed; -1 before the first

    @property
    def at(self) -> float:
        """Epoch seconds of its session's start; 0 if unknown."""
        return self.session.started or 0.0


class TypedAgain(Value):
    """Sentences that belong together: of several sessions, or of which each contradicts another."""

    shared: tuple[str, ...]  # the words by which they do
    sentences: Sequence[Typed]  # the newest first
    contradict: bool = False  # they say different things of one thing; which holds is not decided

    @property
    def sessions(self) -> int:
        """Number of sessions that they were typed in."""
        return len({each.session.id for each in self.sentences})

    @property
    def alike(self) -> "TypedAgain":
        """Those that are nearly equal to one of them: to the one that most sessions agree with."""
        groups = [
            replace(self, sentences=[e for e in self.sentences if nearly_equal(e.words, one.words)])
            for one in self.sentences
        ]
        return max(groups, key=lambda group: group.sessions)

    @property
    def wordings(self) -> list[Typed]:
        """The newest sentence, then the shortest, and last those that are nearly equal to a shorter
        one: one of each session, no words twice; the first few. Of those that contradict each other
        the newest of each, the newest last."""
        if self.contradict:
            return list(reversed(self.sentences[:WORDINGS]))
        by_session = {each.session.id: each for each in reversed(self.sentences)}
        by_words = {each.words.casefold(): each for each in by_session.values()}
        newest, *others = sorted(by_words.values(), key=lambda each: each.at, reverse=True)
        chosen = list[Typed]()
        again = list[Typed]()
        for each in sorted(others, key=lambda each: len(content_words(each.words))):
            known = any(nearly_equal(each.words, one.words) for one in chosen)
            (again if known else chosen).append(each)
        return [newest, *chosen, *again][:WORDINGS]


def typed_by_project(readings: Iterable[SessionReading]) -> dict[str, list[TypedAgain]]:
    """Returns what was typed in several sessions, by project; that with most sessions first."""
    projects = defaultdict[str, list[SessionReading]](list)
    for reading in sorted(readings, key=lambda each: each.started or 0.0, reverse=True):
        projects[reading.place].append(reading)
    ordered = sorted(projects.items(), key=lambda item: len(item[1]), reverse=True)
    found = {place: [*typed_again(own), *contradictions(own)] for place, own in ordered}
    return {place: entries for place, entries in found.items() if entries}


def typed_alike(typed: Mapping[str, Sequence[TypedAgain]]) -> dict[str, list[TypedAgain]]:
    """Of each project what was typed in nearly equal words in several sessions, and what
    contradicts each other."""
    found = {}
    for place, entries in typed.items():
        alike = [each if each.contradict else each.alike for each in entries]
        if again := [each for each in alike if each.contradict or each.sessions > 1]:
            found[place] = again
    return found


def typed_view(project: str, entry: TypedAgain) -> FieldDict:
    """An entry in JSON types (docs/history.md has the keys)."""
    newest = entry.sentences[0]
    return {
        "project": project,
        "shared": entry.shared,
        "contradict": entry.contradict,
        "times": len(entry.sentences),
        "sessions": entry.sessions,
        "first": iso_or_none(entry.sentences[-1].session.started),
        "last": iso_or_none(newest.session.started),
        "typed": [
            {
                "words": each.words,
                "author": each.session.author or None,
                "session": each.session.id,
                "step": each.step,
                "started": iso_or_none(each.session.started),
            }
            for each in entry.sentences
        ],
    }


def contradictions(readings: Sequence[SessionReading | Session]) -> list[TypedAgain]:
    """Returns the sentences of these sessions that contradict each other, questions left out: in
    the same words one denies what the other says, or a word is the opposite of the other's (a
    table), or another number or name. Of equal sayings the newest counts."""
    sayings = defaultdict[tuple[frozenset[str], str], dict[str, Typed]](dict)
    for each in sorted(_typed_in(readings), key=lambda each: each.at):
        if not each.words.endswith("?"):
            for frame, says in frames(each.words):
                sayings[frame][says] = each
    found = [
        TypedAgain(
            shared=tuple(sorted(words)),
            sentences=sorted(by.values(), key=lambda each: each.at, reverse=True),
            contradict=True,
        )
        for (words, _), by in sayings.items()
        if len(by) > 1
    ]
    return sorted(found, key=_order, reverse=True)


def frames(sentence: str) -> Iterator[tuple[tuple[frozenset[str], str], str]]:
    """Each way to contradict a sentence: the things that it speaks of, and its word about them."""
    words, denies = meaning(sentence)
    if len(words) > 1:
        yield (words, "denial"), str(denies)
    for word in words:
        rest = words - {word}
        kind = _OPPOSITES.get(word, "")
        if word.isdigit() and len(rest) > 1:
            kind = "number"
        elif not kind and word.isalpha() and word not in _english() and rest <= _english():
            kind = "name"  # in English, where it is the only word of its sentence that is none
        if kind and rest:
            yield (rest, f"{kind}, {denies}"), word


def typed_again(readings: Sequence[SessionReading | Session]) -> list[TypedAgain]:
    """Returns what was typed in several of these sessions of one project, which are the newest
    first: what was typed on most days, then in most sessions, then the newest. A sentence is in one
    entry."""
    found = [(each, _folded(each.words)) for each in _typed_in(readings)]
    sessions = defaultdict[str, set[str]](set)
    for each, words in found:
        for word in words:
            sessions[word].add(each.session.id)
    entries = defaultdict[tuple[tuple[str, ...], bool], list[Typed]](list)
    for each, words in found:
        again = sorted(word for word in words if len(sessions[word]) > 1)
        pairs = {pair for pair in combinations(again, 2) if any(map(_says_how, pair))}
        for key in pairs | {tuple(again)}:
            if len(key) > 1:
                entries[key, meaning(each.words)[1]].append(each)
    waiting = sorted(
        [TypedAgain(shared=key, sentences=own) for (key, _), own in entries.items()], key=_order
    )
    taken: set[int] = set()
    chosen = list[TypedAgain]()
    while waiting and len(chosen) < MOST_TYPED:
        entry = waiting.pop()
        left = [each for each in entry.sentences if id(each) not in taken]
        if len(left) < len(entry.sentences):  # it waits once more, with what is left of it
            insort(waiting, TypedAgain(shared=entry.shared, sentences=left), key=_order)
        elif entry.sessions > 1:
            taken.update(map(id, left))
            chosen.append(entry)
    return chosen


def _typed_in(readings: Sequence[SessionReading | Session]) -> Iterator[Typed]:
    """The sentences that people typed in these sessions."""
    for turn, session in own_messages(readings):
        for words in typed_sentences(turn.text):
            yield Typed(words=words, session=session, step=turn.step)


Spoken = TypeVar("Spoken", bound=SessionReading | Session)


def own_messages(readings: Iterable[Spoken]) -> Iterator[tuple[HumanTurn, Spoken]]:
    """The messages of people in these sessions. One that another session has with its time is a
    copy; a long text that begins with the same characters in several sessions is a template, and
    nobody's: sent twice in one session it is a person's."""
    turns = {(t.text, t.at or each.id): (t, each) for each in readings for t in each.human}
    found = {(turn.text[:_TEMPLATE], session.id) for turn, session in turns.values()}
    begins = Counter(begin for begin, _ in found)
    for turn, session in turns.values():
        if len(turn.text) < _LEAST or begins[turn.text[:_TEMPLATE]] == 1:
            yield turn, session


def _order(entry: TypedAgain) -> tuple[int, int, float, int, tuple[str, ...]]:
    """Days on which it was typed, sessions, the newest, and words about work."""
    times = [each.at for each in entry.sentences]
    days = len({at // _DAY_S for at in times})
    work = len(_WORK.intersection(entry.shared))
    return days, entry.sessions, max(times, default=0.0), work, entry.shared


def _folded(sentence: str) -> set[str]:
    """The words of a sentence that carry meaning, without the ending of a plural."""
    return set(map(singular, content_words(sentence)))


@cache
def _says_how(word: str) -> bool:
    return word in _WORK or (word.isalpha() and word not in _english())


@cache
def _english() -> frozenset[str]:
    return frozenset(read_text("gateway.embedding", "model/vocab.txt").split("\n"))
