"""Rules that a person's corrections state, extracted by rules of grammar. Pure.

A correction becomes one instruction: a wish of `language.toml`, or what its sentence says in one
of a few clear forms (don't X, always X, use X instead of Y, before you X do Y, X first). Of other
words nothing is made: few rules that are right are better than many. What is left passes the gate.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from msgspec import Struct

from gateway.learning.gate import form, language, refusal, strange, vocabulary
from gateway.learning.reading import command_of, digest, program_of
from gateway.learning.sources import SourceRun, instance
from gateway.steering.evidence.failure_keys import read_action
from gateway.steering.guidance.lessons import SAID
from gateway.steering.guidance.pattern import Lesson, Pattern, Status, Trust, content
from gateway.steering.transcript import message_kinds
from gateway.steering.transcript.interventions import Answer, said_in
from gateway.steering.transcript.steps import Action, Step
from gateway.stores.records import PromptMessage, StepRow
from gateway.text.secrets import mask_secrets

CORRECTS_FROM = 0.2
"""Probability of a correction from which a message is read for rules: the forms of sentences are
the stricter test. Chosen on the first two thirds of the development sessions."""
CLEAR_FROM = 0.5  # from which a model may be asked for the rule
LEAST_PLAIN = 0.6  # share of plain words in what a person wrote
_MOST_SENTENCES = 8  # of one message that are read
_MOST_RULES = 2  # that one message gives: more is a task, not a correction
_SHORT = 20  # words of a message that is one rule, if it says so
MOST_SAID_CHARS = 200  # of the person's words that are kept as evidence

_PASTED = re.compile(r"```.*?(?:```|\Z)|https?://\S+|(?m:^)>[^\n]*", re.DOTALL)
_PLAIN = re.compile(r"[(\"'`]*[A-Za-z]+(?:['\u2019-][A-Za-z]+)*[.,;:?!)\"'`…]*")
_OUTPUT = re.compile(r"\s*(?:---|===|[$>{\[<\u276f]|\w+: error|Traceback|Operation stopped)")


@cache
def _table(name: str) -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    """The rows of a table of `language.toml`, each after the expression of what says it."""
    return tuple(
        (re.compile("|".join([*row.get("says", ()), *_unwanted(row)]), re.IGNORECASE | re.M), row)
        for row in language()[name]
    )


def _unwanted(row: Mapping[str, Any]) -> Iterator[str]:
    if thing := row.get("without"):
        yield f"(?:{form('unwanted').pattern})[^.?!]{{0,30}}(?:{thing})"
        yield f"(?:{thing})[^.?!]{{0,24}}(?:{form('refused').pattern})"


def wish_of(text: str, call: str = "", *, corrects: bool = True) -> str:
    """The rule of the first wish that a text asks for; "" if none is recognised. `call`: the
    arguments of the agent's call that it answers; `corrects`: it is a correction."""
    own = own_words(text)
    for says, row in _table("wish"):
        found = says.search(own) if corrects or row.get("any") else None
        if found and re.search(row.get("after", ""), call, re.DOTALL):
            rule: str = row["rule"]
            return rule.replace("{1}", (found[1] or "").title() if found.re.groups else "")
    return ""


def own_words(text: str) -> str:
    """A message without code blocks, quotations and addresses."""
    return _PASTED.sub(" ", text[: message_kinds.READ_CHARACTERS]).replace("\u2019", "'").strip()


def is_output(text: str) -> bool:
    """True for a text that is mostly not a person's: output of programs, code, addresses."""
    tokens = _PASTED.sub(" ", text[: message_kinds.READ_CHARACTERS]).split()
    plain = sum(_PLAIN.fullmatch(token) is not None for token in tokens)
    return plain < LEAST_PLAIN * len(tokens) or not tokens or _OUTPUT.match(text) is not None


class Situation(Struct, frozen=True):
    """Situation of the agent: its tool or program with the sub-command, the kind of file, and
    the phase of the work; "" for what is not known."""

    doing: str = ""
    file: str = ""
    phase: str = ""


class Rule(Struct, frozen=True, kw_only=True):
    """One instruction that a person gave. `said`: the words, cut; `allows`: it takes a rule back
    instead of stating one; `refused`: why it waits for a person, "" if it need not."""

    text: str
    said: str
    situation: Situation
    allows: bool = False
    refused: str = ""

    @property
    def words(self) -> frozenset[str]:
        """The stems of the words that carry its meaning, by which equal rules are recognised."""
        return meaning(self.text)


def rules_in(
    words: str, *, before: Step | None = None, corrects: bool = True, known: Collection[str] = ()
) -> list[Rule]:
    """The standing rules in what a person typed, usually none. `before`: the agent's step that the
    words answer; `corrects`: they are a correction, else only what is said to hold from now on
    counts; `known`: names that the agent's own tools declare."""
    if message_kinds.is_plan(words) or is_output(words):
        return []
    action = before.actions[-1] if before is not None and before.actions else None
    situation, said = situation_of(action), " ".join(words.split())[:MOST_SAID_CHARS]
    found: dict[frozenset[str], Rule] = {}
    for text, allows in _candidates(words, action, corrects):
        no = refusal(text, known={*known, *_paths(text)})
        if no is None or no.approvable:
            why = no.reason if no else ""
            rule = Rule(text=text, said=said, situation=situation, allows=allows, refused=why)
            found.setdefault(rule.words, rule)
    return list(found.values())[:_MOST_RULES]


# A folder or program in the project, which its rules may name: no file, and nothing with a number.
_PATH = re.compile(
    r"(?<![\w./~\\:@-])(?:\./|(?!(?:home|users|tmp)/)(?=[a-z_-]+/))[a-z][a-z_-]{1,24}"
    r"(?:/[a-z][a-z_-]{1,24}){0,3}/?(?=[,;:!?)\"'`.]*(?:\s|$))"
)


def _paths(text: str) -> Iterator[str]:
    """Paths that no task has for its own, as the gate reads them: below the first folder or program
    all parts are words that belong to no task."""
    for found in _PATH.findall(text):
        if not strange(f"`{found.removeprefix('./').partition('/')[2]}`"):
            yield found.lstrip(".")


def _candidates(words: str, action: Action | None, corrects: bool) -> Iterator[tuple[str, bool]]:
    sentences = list(_sentences(words))
    allowed = [found for each in sentences if (found := form("allows").match(each))]
    for found in allowed:
        if text := _clause(found[found.lastindex or 0]):
            yield text, True
    if allowed:
        return
    short = len(words.split()) <= _SHORT and form("standing").search(words) is not None
    wish = wish_of(words, action.arguments if action else "", corrects=corrects or short)
    stated = [wish] if wish else (_said(each, action, corrects) for each in sentences)
    yield from ((text, False) for text in stated if text)


_STOPS = re.compile(r"(?<=[.!?;\n])\s+|\n+")


def _sentences(words: str) -> Iterator[str]:
    """The sentences of a message, without the marks at their ends."""
    for part in _STOPS.split(own_words(words))[:_MOST_SENTENCES]:
        if text := re.sub(r"\s+", " ", part.strip(" \t-*•.!?;,:")):
            yield text


def _said(sentence: str, action: Action | None, corrects: bool) -> str:
    """The rule that one sentence states; "" for none."""
    for says, row in _table("same"):
        sentence = " ".join(says.sub(row["as"], sentence).split())
    plain = form("fillers").sub("", sentence)
    standing = corrects or form("standing").search(sentence) is not None
    for says, row in _table("form"):
        for begins in (sentence, plain) if standing or row.get("any") else ():
            if (found := says.match(begins)) and (text := _filled(row, found, action, corrects)):
                return text
    return ""


def _filled(
    row: Mapping[str, Any], found: re.Match[str], action: Action | None, corrects: bool
) -> str:
    """The rule of a form, filled with the parts of a sentence; "" if one of them is none."""
    parts = {name: _clause(part) for name, part in found.groupdict().items()}
    for name in parts.keys() & {"do", "past"}:
        parts[name] = _imperative(found[name], past=name == "past")
    if "doing" in parts and not _imperative(parts["doing"], past=True):
        return ""
    if "never" in parts:
        parts["never"] = _negative(found["never"], action)
    parts["call"] = command_shown(action) or "?"
    filled = row["rule"].format(**parts).removesuffix(".")
    text = f"{filled[:1].upper()}{filled[1:]}."
    tied = not row.get("definite") and "never" not in parts and form("definite").search(text)
    other = (row.get("work") or not corrects) and not form("work").search(text)
    cut = row["rule"] == "{do}." and not found.re.match(parts["do"])
    stated = "none" in parts and form("status").search(f"no {found['none']}")
    bad = tied or other or cut or stated or not all(parts.values()) or "`?`" in text
    return "" if bad or not text.isascii() else text


def _negative(text: str, action: Action | None) -> str:
    """The prohibition that a text states; "" for none. A pronoun is the command that was called."""
    verb, _, rest = form("ends").split(text)[0].strip().partition(" ")
    verb = _base(verb.strip(",.").lower())
    shown = command_shown(action)
    if verb in ("do", "run", "call", "use") and form("pronoun").match(rest):
        return f"Do not run `{shown}`." if " " in shown else ""
    object_less = not rest or form("pronoun").match(rest) or rest == "unless asked"
    if verb in vocabulary("without_object") and object_less:
        return f"Do not {verb} unless asked."
    if verb not in vocabulary("verbs") or object_less:
        return ""
    what = _clause(rest)
    bound = form("definite").search(rest) and not form("every").search(text)
    return f"Do not {verb} {what}." if what and not bound else ""


def _imperative(text: str, *, past: bool = False) -> str:
    """A clause that begins with a verb of an agent's work, in full; "" for another."""
    first, _, rest = _clause(form("fillers").sub("", text.strip())).partition(" ")
    verb = _base(first.lower()) if past else first.lower()
    return f"{verb} {rest}" if verb in vocabulary("verbs") and rest else ""


def _clause(text: str) -> str:
    """A clause without its reasons; "" if it is tied to one moment, too short or too long."""
    kept = form("ends").split(text.strip())[0].strip(" .,:;!?")
    kept = re.sub(r"(?i)\bmy\b", "the person's", re.sub(r"(?i)\bme\b", "the person", kept))
    kept = re.sub(r"(?<![\w`-])--[a-z][a-z-]{1,30}(?![\w`-])", r"`\g<0>`", kept)
    tied = form("once").search(kept) or not 0 < len(kept.split()) <= 16
    return "" if tied else kept


def _base(verb: str) -> str:
    """The verb of a participle or gerund, as far as it is known."""
    stem = verb.removesuffix("ing")
    forms = (verb, verb[:-1], verb[:-2], verb[:-3], stem, f"{stem}e", stem[:-1])
    known = (each for each in forms if each in vocabulary("verbs"))
    return language()["irregular"].get(verb) or next(known, verb)


def command_shown(action: Action | None) -> str:
    """Program and sub-command of a shell call, for a rule; "" for another call."""
    if action is None or not read_action(action).head.startswith("$"):
        return ""
    return program_of(command_of(action.arguments) or "")


_SUFFIX = re.compile(r"[\"'/\w](\.[a-z]{1,5})\"")


def situation_of(action: Action | None) -> Situation:
    """The situation that a call shows; an answer without a call has the phase `answering`."""
    if action is None:
        return Situation(phase="answering")
    reading = read_action(action)
    doing = command_shown(action) or reading.head.lstrip("$")
    suffix = _SUFFIX.search(action.arguments[: message_kinds.READ_CHARACTERS])
    other = "editing" if reading.call.effect.changes else "looking"
    phases = ("publishing", "testing", "planning")
    phase = next((name for name in phases if form(name).search(doing)), other)
    return Situation(doing, suffix[1] if suffix else "", phase)


_STEM = re.compile(r"(?:ies|ing|ed|es|s|e|y)$")
_MEANT = re.compile(r"[a-z][a-z0-9_-]+")
_NO = re.compile(r"\b(?:not|never|avoid|without|stop)\b|n't\b|^no\b")
_LIMITS = frozenset(("onl", "instead", "unles", "rather"))  # stems of words that exclude
ALIKE = 0.6  # share of the words of two rules that are in both, for them to say the same


@lru_cache(maxsize=4096)
def meaning(text: str) -> frozenset[str]:
    """Stems of the words of a rule that carry its meaning, with `not` for a prohibition."""
    flat = text.lower().replace(", not ", " instead ")
    kept = (word for word in _MEANT.findall(flat) if word not in vocabulary("common"))
    stems = {_STEM.sub("", language()["synonyms"].get(word, word)) for word in kept}
    return frozenset(stems - {"avoid", "stop"} | ({"not"} if _NO.search(flat) else set()))


@cache
def _light() -> frozenset[str]:
    return frozenset(_STEM.sub("", word) for word in vocabulary("light")) | _LIMITS


def same_rule(a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether two rules say the same: most words in both, and both forbid or neither does."""
    one, other = a - _light() - {"not"}, b - _light() - {"not"}
    if not one or not other:
        return a == b
    return ("not" in a) == ("not" in b) and len(one & other) >= ALIKE * len(one | other)


def meant(pattern: Pattern) -> frozenset[str]:
    """The meaning of a stored rule."""
    return meaning(content(pattern.fields).move)


def joined(words: frozenset[str], stored: Sequence[Pattern]) -> Pattern | None:
    """The first of the stored rules that says the same, with the text that it was given since."""
    edited = {each.lesson.supersedes: each for each in stored if each.lesson}
    pattern = next((each for each in stored if same_rule(meant(each), words)), None)
    while pattern is not None and (newer := edited.get(pattern.pattern_id)):
        pattern = newer
    return pattern


def takes_back(allowed: frozenset[str], rule: frozenset[str]) -> bool:
    """Whether what is allowed now is what a rule forbids, and most of it."""
    forbidden = rule - _light() - {"not", "ask"}
    shared = len((allowed - _light()) & forbidden)
    return "not" in rule and shared >= max(1, ALIKE * len(allowed), len(forbidden) / 2)


def taken_back(allowed: Rule, stored: Sequence[Pattern], at: float) -> list[Pattern]:
    """The stored rules, said before that time and not paused by hand, that one takes back."""
    known = ((each, each.lesson) for each in stored if takes_back(allowed.words, meant(each)))
    given = ((each, own) for each, own in known if own and own.status is not Status.QUARANTINED)
    return [each for each, own in given if own.last_confirmed_at < at]


class Said(NamedTuple):
    """Words that a person typed in a run: the step, what the agent had done, and the probability
    that it is a correction."""

    step: int
    words: str
    before: Step | None
    chance: float

    @property
    def corrects(self) -> bool:
        """Whether it is read for rules that a correction states."""
        return self.chance >= CORRECTS_FROM

    @property
    def clear(self) -> bool:
        """Whether it is so clearly a correction that a model may word its rule."""
        return self.chance >= CLEAR_FROM and not is_output(self.words)

    def rules(self, known: Collection[str]) -> list[Rule]:
        """The standing rules in it; `known`: as in `rules_in`."""
        return rules_in(self.words, before=self.before, corrects=self.corrects, known=known)


def said_in_run(rows: Sequence[StepRow], *, opens: bool) -> Iterator[Said]:
    """The person's words in a stored run, each once; of tools, files and clients there are none.
    `opens`: its first message is the conversation's: a task, which corrects nothing."""
    seen: set[str] = set()
    last: Step | None = None
    for row in rows:
        if (content := row.content) is None:
            continue
        done = Step(index=row.step_index, thought=content.thought, actions=content.actions)
        reply = Step(
            index=row.step_index, thought=content.reply_text, actions=content.reply_actions
        )
        for act in content.human:
            if act.words and act.words not in seen:
                seen.add(act.words)
                yield Said(row.step_index, act.words, reply if act.of_reply else done, 1.0)
        typed = said_in([{"role": each.role, "content": each.text} for each in content.messages])
        words = Answer(said=typed).words
        if words and words not in seen:
            seen.add(words)
            chances = message_kinds.kind_chances(
                words, before=message_kinds.agent_words(last) if last else ""
            )
            chance = 0.0 if opens and last is None else message_kinds.corrected(chances)
            yield Said(row.step_index, words, last, chance)
        last = reply if content.reply_text or content.reply_actions else done


def may_teach(project: tuple[str, str], steps: Sequence[Step]) -> bool:
    """Whether the person may state any rule of the project: one who works in a folder, or lets the
    agent use a shell. Others may be its customers."""
    actions = (action for step in steps for action in step.actions)
    return bool(project[1]) or any(read_action(a).head.startswith("$") for a in actions)


def names_tool(rule: Rule, steps: Sequence[Step]) -> bool:
    """Whether a rule names a tool that the agent called, as customers do not, and no path."""
    names = {
        action.name for step in steps for action in step.actions if not _PATH.search(rule.text)
    }
    return not names.isdisjoint(re.findall(r"[\w-]+", rule.text))


def known_names(steps: Sequence[Step]) -> frozenset[str]:
    """Names of the tools that an agent called, and their parts: they are no values of a task."""
    names = {action.name for step in steps for action in step.actions}
    parts = {part.title() for name in names for part in re.split(r"[_\W]+", name) if len(part) > 3}
    return frozenset(names | parts)


_FOLDER = re.compile(
    r"(?i)(?:working directory|workspace(?: folder| root| directories)?|\bcwd|current directory"
    r"|project root|repository)\W{1,12}?((?:/|~|[A-Z]:\\)[^\s<>\"'`]{1,300})"
)
_WORKTREE = re.compile(r"[/\\]\.(?:claude[/\\])?worktrees?[/\\].*|(?<![/\\])[/\\]++$")
_PROMPT_CHARS = 4000  # of a system prompt, by which an agent without a folder is recognised


def project_of(prompts: Sequence[PromptMessage]) -> tuple[str, str]:
    """The project of a run, hashed, and the last part of its name: the working directory that the
    client names, else the system prompt without its numbers; ("", "") without either."""
    text = "\n".join(each.text for each in prompts if each.role in ("system", "developer"))
    found = _FOLDER.search("\n".join(each.text for each in prompts))
    if found:
        folder = _WORKTREE.sub("", found[1].rstrip(".,;)"))
        return digest(folder), re.split(r"[/\\]", folder)[-1][:40]
    head = mask_secrets(text[: 2 * _PROMPT_CHARS])[:_PROMPT_CHARS]  # as it is stored
    return (digest(re.sub(r"\d+", "0", head)), "") if text else ("", "")


_INSTRUCTED = 0.7  # share of a rule's words in a sentence that says it


@lru_cache(maxsize=64)
def _sentences_meant(text: str) -> tuple[frozenset[str], ...]:
    """The meaning of each sentence of a prompt; many runs begin with the same one."""
    parts = _STOPS.split(text[:100_000])
    return tuple(each | ({"not"} if each & _LIMITS else set()) for each in map(meaning, parts))


def instructed(rule: str, prompts: Sequence[PromptMessage]) -> bool:
    """Whether the agent's own instructions, in the opening of its run, say a rule already."""
    meant = meaning(rule) - _LIMITS
    return any(
        len(meant & each) >= _INSTRUCTED * len(meant) and ("not" in each or "not" not in meant)
        for prompt in prompts
        for each in _sentences_meant(prompt.text)
    )


def correction(run: SourceRun, said: Said, rule: Rule, expires_at: float) -> Pattern:
    """The candidate for a rule, with its author and date."""
    situation, (scope, shown) = rule.situation, run.project
    marks = {"said": mask_secrets(rule.said), "author": run.key_name, "project": shown}
    marks |= {"doing": situation.doing, "file": situation.file, "phase": situation.phase}
    if said.before is not None:
        until = [step for step in run.steps if step.index <= said.before.index]
        calls = [a for step in until for a in step.actions if a not in said.before.actions]
        known = (each for each in map(situation_of, reversed(calls)) if each.phase != "looking")
        marks["precedes"] = next((each.doing for each in known if each.doing), "")
    key = f"{SAID}|{scope}|{digest(rule.text)}"
    where = f"`{situation.doing}`" if situation.doing else situation.phase
    fields = {
        "task_context_embedding_text": f"A person said it ({where}).",
        "recommended_action": rule.text,
    }
    kept = {name: text for name, text in marks.items() if text}
    lesson = Lesson(
        key=key, origin=SAID, trust=Trust.USER, applies_when=kept, expires_at=expires_at
    )
    return instance(run, said.step, fields, lesson)
