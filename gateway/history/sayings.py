"""The corrections that a person had to repeat: groups of sayings that ask for the same.

Sayings are joined by the rule that they state (`gateway/learning/corrections.py`), or by equal
words. Words of a correction are not its rule: what is joined should be right."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.history.session import HumanKind, Session, project_of
from gateway.learning.corrections import is_output, own_words, rules_in, wish_of
from gateway.learning.gate import vocabulary
from gateway.steering.transcript.message_kinds import agent_words, corrected, is_plan, kind_chances
from gateway.steering.transcript.steps import StepReader
from gateway.text.secrets import mask_secrets

SURE = 0.5  # probability from which a message counts as a correction
SURE_BACKED = 0.35  # the same for the words of a rejection, and for words that show a rule
ALIKE = 0.6  # share of the words of two sayings that are in both, for them to say the same
LEAST_WORDS = 2  # words with a meaning that two sayings must share
MOST_READ = 20_000  # sayings, the newest, that are compared
_QUOTED_CHARACTERS = 200

_WORDS = re.compile(r"[a-z][a-z0-9_'-]+")


class Saying(Struct, frozen=True, kw_only=True):
    """One thing that a person said: where, when (seconds of the epoch), and after what. `event` and
    `before` as in `kind_chances`. `turn`: its index among the session's acts. `corrects`: it is
    probably a correction; None: not judged yet."""

    text: str
    session: str
    project: str = ""
    at: float | None = None
    event: HumanKind = "message"
    before: str = ""
    turn: int = -1
    corrects: bool | None = None


class Group(Struct, frozen=True, kw_only=True):
    """Corrections of one project that ask for the same. `rule`: what they state, "" for sayings
    with equal words; `text`: the shortest clear wording, with secrets masked."""

    text: str
    rule: str
    project: str
    times: int
    sessions: int


def sayings_of(session: Session) -> list[Saying]:
    """The things that the person said in a session, and whether each corrects the agent."""
    reader, before, at = StepReader(), "", 0
    found: list[Saying] = []
    stopped = False
    ordered = sorted(enumerate(session.human), key=lambda each: each[1].position)
    for index, turn in ordered:
        while at < min(turn.position, len(session.messages)):
            reader.read(session.messages[at])
            at += 1
        if reader.draft is not None:
            before = agent_words(reader.draft.step())
        if turn.kind == "interrupt" and not turn.text:
            stopped = True
            continue
        event: HumanKind = "interrupt" if stopped and turn.kind == "message" else turn.kind
        stopped = False
        if turn.text:
            at_step = Saying(text=turn.text, session=session.id, before=before, turn=index)
            project = project_of(session.project)
            found.append(replace(at_step, project=project, at=turn.at, event=event))
    return [replace(saying, corrects=is_correction(saying)) for saying in found]


def repeated(sayings: Iterable[Saying], *, least: int = 2) -> list[Group]:
    """Corrections that ask for the same in at least `least` sessions, the most frequent first."""
    by_project: dict[str, list[Saying]] = defaultdict(list)
    for saying in _once(sayings):
        if is_correction(saying):
            by_project[saying.project].append(saying)
    groups = [
        _group(rule, members)
        for each in by_project.values()
        for rule, members in _joined(each[-MOST_READ:])
        if len({saying.session for saying in members}) >= least
    ]
    return sorted(groups, key=lambda group: (-group.times, -group.sessions, group.text))


def is_correction(saying: Saying) -> bool:
    """True for a saying in the person's own words that is probably a correction."""
    if saying.corrects is not None:
        return saying.corrects
    if is_plan(saying.text) or is_output(saying.text):
        return False
    chances = kind_chances(
        saying.text, event=saying.event, before=saying.before, opens=not saying.before
    )
    backed = saying.event == "reject" or wish_of(saying.text)
    return corrected(chances) >= (SURE_BACKED if backed else SURE)


def _once(sayings: Iterable[Saying]) -> list[Saying]:
    """The sayings by time, without the copies that a continued session has of an earlier one."""
    found: dict[tuple[object, ...], Saying] = {}
    for number, saying in enumerate(sorted(sayings, key=lambda s: (s.at or 0.0, s.session))):
        words = " ".join(saying.text.split())
        copied = saying.at is not None or len(words) > 40
        found.setdefault((saying.project, words, saying.at if copied else number), saying)
    return list(found.values())


def _joined(sayings: Sequence[Saying]) -> list[tuple[str, list[Saying]]]:
    """Sayings of one project by rule; the rest by the first one that has nearly the same words."""
    by_rule: dict[str, list[Saying]] = defaultdict(list)
    for saying in sayings:
        rules = (rule.text for rule in rules_in(saying.text) if not rule.allows)
        by_rule[next(rules, "")].append(saying)
    rest = by_rule.pop("", [])
    return [*by_rule.items(), *(("", members) for members in _alike(rest))]


def _alike(sayings: Sequence[Saying]) -> list[list[Saying]]:
    groups: list[tuple[frozenset[str], list[Saying]]] = []
    firsts: dict[str, list[int]] = defaultdict(list)  # word -> groups whose first saying has it
    for saying in sayings:
        words = _meaning(own_words(saying.text))
        near = Counter(group for word in words for group in firsts[word])
        for group, shared in near.most_common(20):
            if shared >= max(LEAST_WORDS, ALIKE * len(words | groups[group][0])):
                groups[group][1].append(saying)
                break
        else:
            for word in words:
                firsts[word].append(len(groups))
            groups.append((words, [saying]))
    return [members for _, members in groups]


def _group(rule: str, members: Sequence[Saying]) -> Group:
    texts = [mask_secrets(" ".join(saying.text.split()))[:_QUOTED_CHARACTERS] for saying in members]
    clear = [text for text in texts if len(_meaning(own_words(text))) >= LEAST_WORDS] or texts
    return Group(
        text=min(clear, key=len),
        rule=rule,
        project=members[0].project,
        times=len(members),
        sessions=len({saying.session for saying in members}),
    )


def _meaning(words: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(words.lower())) - vocabulary("said_often")
