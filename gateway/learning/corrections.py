"""Rules that a person's corrections state, extracted by rules of grammar. Pure.

A correction becomes one instruction: a wish of `language.toml`, or what its sentence says in one
of a few clear forms (don't X, always X, use X instead of Y, before you X do Y, X first). Of other
words nothing is made: few rules that are right are better than many. What is left passes the gate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from msgspec import Struct

from gateway.learning.gate import form, language, refusal, vocabulary
from gateway.learning.mining import MinedRun, instance
from gateway.learning.reading import command_of, digest, program_of
from gateway.steering.evidence.failure_keys import read_action
from gateway.steering.guidance.lessons import SAID
from gateway.steering.guidance.pattern import Lesson, Pattern, Trust, content
from gateway.steering.transcript.interventions import Answer, said_in
from gateway.steering.transcript.message_kinds import (
    READ_CHARACTERS,
    agent_words,
    corrected,
    is_plan,
    kind_chances,
)
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
MOST_SAID_CHARS = 200  # of the person's words that are kept as evidence

_PASTED = re.compile(r"```.*?(?:```|\Z)|https?://\S+|(?m:^)>[^\n]*", re.DOTALL)
_PLAIN = re.compile(r"[(\"'`]*[A-Za-z]+(?:['\u2019-][A-Za-z]+)*[.,;:?!)\"'`…]*")
_OUTPUT = re.compile(r"\s*(?:---|===|[$>{\[<\u276f]|\w+: error|Traceback|Operation stopped)")


@cache
def _wishes() -> tuple[tuple[str, re.Pattern[str], re.Pattern[str], bool], ...]:
    """The rule of each wish, what says it, after what call, and whether any message may say it."""
    return tuple(
        (
            row["rule"],
            re.compile("|".join(row["says"]), re.MULTILINE),
            re.compile(row.get("after", ""), re.DOTALL),
            row.get("any", False),
        )
        for row in language()["wish"]
    )


def wish_of(text: str, call: str = "", *, corrects: bool = True) -> str:
    """The rule of the first wish that a text asks for; "" if none is recognised. `call`: the
    arguments of the agent's call that it answers; `corrects`: it is a correction."""
    own = own_words(text)
    for rule, says, after, anywhere in _wishes():
        found = says.search(own) if corrects or anywhere else None
        if found and after.search(call):
            return rule.replace("{1}", (found[1] or "").title() if found.re.groups else "")
    return ""


def own_words(text: str) -> str:
    """A message in small letters, without code blocks, quotations and addresses."""
    return _own(text).lower()


def _own(text: str) -> str:
    return _PASTED.sub(" ", text[:READ_CHARACTERS]).replace("\u2019", "'").strip()


def is_output(text: str) -> bool:
    """True for a text that is mostly not a person's: output of programs, code, addresses."""
    tokens = _PASTED.sub(" ", text[:READ_CHARACTERS]).split()
    plain = sum(_PLAIN.fullmatch(token) is not None for token in tokens)
    return plain < LEAST_PLAIN * len(tokens) or not tokens or _OUTPUT.match(text) is not None


class Situation(Struct, frozen=True):
    """The work of the agent: its tool or program with the sub-command, the kind of file, and
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
    """The standing rules in what a person typed, usually none.

    `before`: the agent's step that the words answer; `corrects`: they are a correction, else only
    what is said to hold from now on counts; `known`: names that the agent's own tools declare.
    """
    if is_plan(words) or is_output(words):
        return []
    action = before.actions[-1] if before is not None and before.actions else None
    situation = situation_of(action)
    found: list[Rule] = []
    for text, allows in _candidates(words, action, corrects):
        refused = refusal(text, known=known)
        if refused is not None and not refused.approvable:
            continue
        said = " ".join(words.split())[:MOST_SAID_CHARS]
        reason = refused.reason if refused else ""
        rule = Rule(text=text, said=said, situation=situation, allows=allows, refused=reason)
        if all(rule.words != each.words for each in found):
            found.append(rule)
    return found[:_MOST_RULES]


def _candidates(words: str, action: Action | None, corrects: bool) -> Iterator[tuple[str, bool]]:
    arguments = action.arguments if action is not None else ""
    if wish := wish_of(words, arguments, corrects=corrects):
        yield wish, False
        return
    for sentence in _sentences(words):
        if allowed := form("allows").match(sentence):
            if text := _clause(allowed[1]):
                yield _capital(text), True
        elif text := _said(sentence, action, corrects):
            yield text, False


_STOPS = re.compile(r"(?<=[.!?;\n])\s+|\n+")


def _sentences(words: str) -> Iterator[str]:
    """The sentences of a message, without the marks at their ends."""
    for number, part in enumerate(_STOPS.split(_own(words))):
        if number >= _MOST_SENTENCES:
            return
        text = part.strip(" \t-*•.!?;,:")
        if text:
            yield re.sub(r"\s+", " ", text)


def _said(sentence: str, action: Action | None, corrects: bool) -> str:
    """The rule that one sentence states; "" for none."""
    plain = form("fillers").sub("", sentence)
    for begins in (sentence, plain):
        if found := form("always").match(begins):
            clause = _imperative(found[1]) or _negative(found[1], action)
            if clause.startswith(("Do not", "Avoid")) or not clause:
                return clause
            return f"Always {clause}."
        if found := form("each_time").match(begins):
            when, clause = _clause(found[1]), _imperative(found[2])
            standing = corrects or begins.lower().startswith(("whenever", "every", "each"))
            return f"{_capital(when)}, {clause}." if when and clause and standing else ""
        if not corrects:
            continue
        if text := _negative(begins, action):
            return text
        if found := form("should_have").match(begins):
            clause = _imperative(f"{_base(found[1].lower())}{found[2]}")
            return f"{_capital(clause)}." if clause and not form("definite").search(clause) else ""
    if not corrects:
        return ""
    if (found := form("instead").match(plain)) and (what := _clause(found[2])):
        other, joint = _clause(found[4]), "," if found[3] == "not" else ""
        text = f"{_capital(found[1])} {what}{joint} {found[3]} {other}."
        return text if other and not form("definite").search(text) else ""
    if (found := form("prefer").match(plain)) and (what := _clause(found[1])):
        return f"Prefer {what}."
    found = form("plural").match(plain)
    if found and not form("once").search(found[1]) and (what := _clause(found[4])):
        must = "must not" if (found[3] or "").strip() in ("not", "never") else "must"
        return f"{_capital(found[1])} {must} {what}."
    if (found := form("each").match(plain)) and (what := _clause(found[3])):
        return f"{_capital(found[1])} {found[2]} {what}."
    shown = command_shown(action)
    if (found := form("first").match(plain)) and shown and (clause := _imperative(found[1])):
        return "" if form("definite").search(clause) else f"Before `{shown}`, {clause}."
    clause = _imperative(plain)
    ahead = form("ahead").search(clause) and not form("definite").search(clause)
    if clause and (ahead or form("every").search(clause)):
        return f"{_capital(clause)}."
    return ""


def _negative(sentence: str, action: Action | None) -> str:
    """The prohibition in a sentence; "" for none. A pronoun is the command that was called."""
    if found := form("not_doing").match(sentence):
        doing = _clause(found[1])
        verb = _base(doing.partition(" ")[0].lower())
        return f"Avoid {doing}." if verb in vocabulary("verbs") else ""
    found = form("not").match(sentence)
    if found is None:
        return ""
    verb, _, rest = found[1].partition(" ")
    verb = verb.strip(",.").lower()
    rest = form("ends").split(rest)[0].strip()
    shown = command_shown(action)
    if verb in ("do", "run", "call", "use") and form("pronoun").match(rest):
        return f"Do not run `{shown}`." if " " in shown else ""
    object_less = not rest or form("pronoun").match(rest)
    if verb in vocabulary("without_object") and object_less:
        return f"Do not {verb} unless asked."
    if verb not in vocabulary("verbs") or not rest:
        return ""
    what = _clause(rest)
    bound = form("definite").search(rest) and not form("every").search(sentence)
    return f"Do not {verb} {what}." if what and not bound else ""


def _imperative(text: str) -> str:
    """A clause that begins with a verb of an agent's work, in full; "" for another."""
    clause = _clause(form("fillers").sub("", text.strip()))
    first, _, rest = clause.partition(" ")
    return f"{first.lower()} {rest}" if first.lower() in vocabulary("verbs") and rest else ""


def _clause(text: str) -> str:
    """A clause without its reasons; "" if it is tied to one moment, too short or too long."""
    kept = form("ends").split(text.strip())[0].strip(" .,:;!?")
    kept = re.sub(r"(?i)\bmy\b", "the person's", re.sub(r"(?i)\bme\b", "the person", kept))
    tied = form("once").search(kept) or not 0 < len(kept.split()) <= 16
    return "" if tied else kept


def _base(verb: str) -> str:
    """The verb of a participle or gerund, as far as it is known."""
    stem = verb.removesuffix("ing") if verb.endswith("ing") else verb
    forms = (verb, verb[:-1], verb[:-2], verb[:-3], stem, f"{stem}e", stem[:-1])
    known = vocabulary("verbs")
    found: str = language()["irregular"].get(verb, next((f for f in forms if f in known), verb))
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


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
    suffix = _SUFFIX.search(action.arguments[:READ_CHARACTERS])
    other = "editing" if reading.call.effect.changes else "looking"
    phases = ("publishing", "testing", "planning")
    phase = next((name for name in phases if form(name).search(doing)), other)
    return Situation(doing, suffix[1] if suffix else "", phase)


_STEM = re.compile(r"(?:ing|ed|es|s|e)$")
_MEANT = re.compile(r"[a-z][a-z0-9-]+")
_NO = re.compile(r"\b(?:not|never|avoid|without)\b")
ALIKE = 0.6  # share of the words of two rules that are in both, for them to say the same


def meaning(text: str) -> frozenset[str]:
    """Stems of the words of a rule that carry its meaning, with `not` for a prohibition."""
    flat = text.lower()
    stems = {
        _STEM.sub("", word) for word in _MEANT.findall(flat) if word not in vocabulary("common")
    }
    return frozenset(stems | ({"not"} if _NO.search(flat) else set()))


def same_rule(a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether two rules say the same: most words in both, and both forbid or neither does."""
    return ("not" in a) == ("not" in b) and len(a & b) >= ALIKE * len(a | b)


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
    """Whether what is allowed now is what a rule forbids."""
    forbidden = rule - {"not"}
    return "not" in rule and bool(allowed) and len(allowed & forbidden) >= ALIKE * len(allowed)


def taken_back(allowed: Rule, stored: Sequence[Pattern], at: float) -> list[Pattern]:
    """The stored rules, said before that time, that one takes back."""
    earlier = [each for each in stored if each.lesson and each.lesson.last_confirmed_at < at]
    return [each for each in earlier if takes_back(allowed.words, meant(each))]


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
            chances = kind_chances(words, before=agent_words(last) if last else "")
            chance = 0.0 if opens and last is None else corrected(chances)
            yield Said(row.step_index, words, last, chance)
        last = reply if content.reply_text or content.reply_actions else done


def known_names(steps: Sequence[Step]) -> frozenset[str]:
    """Names of the tools that an agent called, and their parts: they are no values of a task."""
    names = {action.name for step in steps for action in step.actions}
    parts = {part.title() for name in names for part in re.split(r"[_\W]+", name) if len(part) > 3}
    return frozenset(names | parts)


_FOLDER = re.compile(
    r"(?i)(?:working directory|workspace(?: folder| root)?|\bcwd|current directory|project root"
    r"|repository)\W{1,12}?((?:/|~|[A-Z]:\\)[^\s<>\"'`]{1,300})"
)
_WORKTREE = re.compile(r"[/\\]\.(?:claude[/\\])?worktrees?[/\\].*|[/\\]+$")
_PROMPT_CHARS = 4000  # of a system prompt, by which an agent without a folder is recognised


def project_of(prompts: Sequence[PromptMessage]) -> tuple[str, str]:
    """The project of a run, hashed, and the last part of its name: the working directory that the
    client names, else the system prompt without its numbers; ("", "") without either."""
    text = "\n".join(each.text for each in prompts if each.role in ("system", "developer"))
    found = _FOLDER.search("\n".join(each.text for each in prompts))
    if found:
        folder = _WORKTREE.sub("", found[1].rstrip(".,;)"))
        return digest(folder), re.split(r"[/\\]", folder)[-1][:40]
    return (digest(re.sub(r"\d+", "0", text[:_PROMPT_CHARS])), "") if text else ("", "")


_LIMITS = frozenset(("only", "instead", "unles", "rather"))  # stems of words that exclude
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


def correction(run: MinedRun, said: Said, rule: Rule, project: tuple[str, str]) -> Pattern:
    """The candidate for a rule, with its author and date."""
    situation, (scope, shown) = rule.situation, project
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
    lesson = Lesson(key=key, origin=SAID, trust=Trust.USER, applies_when=kept)
    return instance(run, said.step, fields, lesson)
