"""Kind of a message that a person typed to an agent: a task, a question, a correction and others.

A linear model over signs of general English and single words, fitted on messages that were labelled
by reading: `python -m lab kinds` writes `message_kinds.json`, docs/evidence.md has its figures. In
other languages it knows little more than the shape of a message."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import Final, Literal

from msgspec import Struct

from gateway.steering.transcript.steps import Step

MessageKind = Literal["new", "go", "ask", "fix", "steer", "design", "info"]
KINDS: Final[tuple[MessageKind, ...]] = ("new", "go", "ask", "fix", "steer", "design", "info")
"""new: a task, or the next step that was foreseen. go: go on, approval, thanks. ask: a question
without criticism. fix: what was delivered is wrong or incomplete. steer: corrects how the agent
works. design: a decision about the product. info: an answer, context, output that was asked for."""
CORRECTIONS: Final[tuple[MessageKind, ...]] = ("fix", "steer")

READ_CHARACTERS = 420  # of a message, and the end of what the agent said. Source: the labelled data
_CALL_CHARACTERS = 130  # of the arguments of the agent's call
_BEFORE_WORDS = 25  # at the end of what the agent said
_WORD_WEIGHT = 0.5  # a single word says less than a sign
_EVENT_WEIGHT = 3.0  # an act says more than a word: the penalty of the fit presses it less
_PLANS = ("implement the following plan", "this session is being continued")
"""Texts that a client writes into the message when a plan was accepted or a session goes on."""

_FILLED = r"^(?:(?:oh|ok|okay|so|and|now|then|also|please|yes|q|question|just|next)\b[\s,:]*){0,2}"
_CODE = re.compile(
    r"```.*?(?:```|$)|`[^`\n]*`|https?://\S+|(?:@|(?<![~.\w-]))[~.\w-]*/[\w./-]+"
    r"|\b\w+\(\)|\b\w*[a-z][A-Z]\w*|\b\w+_\w+|--\w[\w-]*|#\d+|\b[0-9a-f]{7,}\b",
    re.DOTALL,
)
_WORDS = re.compile(r"[a-z]+(?:'[a-z]+)?|[?!§]")
_ASKING = re.compile(r"[a-z]+|[?!:.✅]")

_OPENINGS: Final[Mapping[str, str]] = {
    "yes": r"^(?:yes|yeah|yep|yup|ya|sure|ok|okay|alright|great|perfect|nice|cool|sounds good"
    r"|looks good|lgtm|thanks?|thank you)\b",
    "yes alone": r"^(?:yes|yeah|yep|yup|sure|ok|okay|great|perfect|continue|go|proceed|do it|\d)"
    r"[\s.!,]*(?:please|do it|continue|go on|go ahead|thanks)?[\s.!]*$",
    "no": r"^(?:(?:oh|ah|ok|okay|so|and)[\s,]+)?(?:no|nope|nah|not|don't|do not|never|stop|wait"
    r"|hold|hang on|revert|undo)\b",
    "doubts": r"^(?:hmm+|mmm+|erm*|emm*|uh+|huh|ehh*|really|but|actually|again|still|wrong|\?+"
    r"|argh+|gah|ah)\b",
    "continue": _FILLED + r"(?:let's )?(?:continue|proceed|go on|go ahead|go for it|keep going"
    r"|do it|retry|resume|commit|push|merge|ship|create a (?:draft )?pr)\b",
    "let's": _FILLED + r"let's\b",
    "can you": _FILLED + r"(?:can|could|would) (?:you|we)\b",
    "question": _FILLED + r"(?:what|how|why|where|when|which|who|is|are|do|does|did|was|were|has"
    r"|have|will|would|should)\b",
    "imperative": _FILLED + r"(?:add|address|ask|change|check|clean|commit|complete|create|debug"
    r"|delete|do|ensure|explain|fix|generate|give|handle|have a look|implement|include"
    r"|investigate|keep|list|log|look|make|merge|move|open|print|prefer|pull|push|put|read|rebase"
    r"|refactor|remove|rename|replace|reply|respond|review|revert|run|show|simplify|skip|sort"
    r"|start|tell|test|try|update|use|verify|write)\b",
    "link": r"^(?:but|also|and|so|or)\b",
}
_ANYWHERE: Final[Mapping[str, str]] = {
    "why": r"why",
    "can": r"(?:can|could|would|will) (?:you|we)",
    "review": r"review|investigate|look at|look into|take a look|check out|research",
    "create": r"create|write|build|implement|generate|open|draft",
    "add": r"add|include|support|extend|allow",
    "repair": r"fix|repair|resolve|address|debug",
    "wants": r"i(?:'d| would)? (?:like|want|prefer|need)|i'd go|we want",
    "names": r"renamed?|call (?:it|this)|named?|naming|wording|term|print|option [a-e1-9]|move it"
    r"|drop|remove",
    "thinks": r"i (?:think|guess|wonder|feel|assume|believe|suspect)"
    r"|i'm (?:wondering|thinking|not sure|confused)",
    "check": r"check|verify|validate|make sure|double check|recheck|confirm"
    r"|(?:are|is) (?:you|we) sure",
    "negated": r"not|never|cannot|nothing|none|without|no longer|no|\w+n't",
    "don't": r"do not|don't|let's not|stop|avoid|no need|never|leave",
    "instead": r"instead|rather|prefer",
    "again": r"again|still|keeps?|already|once more|back to",
    "wrong": r"wrong|incorrect|not (?:correct|right|quite)|mistake|bugs?|buggy|broken?|breaks|broke"
    r"|bad|worse|weird|(?:is|are|bit|looks?|seems?|way) off|strange|messed|regression|inconsistent"
    r"|misleading|brittle|flaky|unnecessary|redundant|duplicate[sd]?|copied|dead code|unused",
    "fails": r"fail(?:s|ed|ing|ures?)?|errors?|crash(?:es|ed)?|exception|panic(?:s|ked)?|traceback"
    r"|denied|refused|fatal|undefined|cannot|can't|couldn't|unable|timed out|timeout|conflicts?",
    "missing": r"missing|lacks?|los[te]|forgot(?:ten)?|missed|ignore[sd]|skipped|empty"
    r"|never (?:called|used)|no (?:tests?|coverage|way)"
    r"|not (?:seeing|showing|working|set|used|handled|covered|checked|tested|cleared|found|there)"
    r"|(?:isn't|aren't|doesn't|don't|didn't|won't|can't|wasn't) (?:see|seem|work|working|show"
    r"|showing|have|handle|check|checking|appear|set|really|do|get|any)",
    "works not": r"(?:doesn't|does not|isn't|is not|not|didn't|did not|won't|stopped) (?:\w+ )?"
    r"work(?:s|ing)?",
    "sees": r"i (?:see|saw|get|got|am seeing|can't|cannot|don't see|just|still)"
    r"|i'm (?:seeing|not seeing|getting|still)|it (?:says|shows|looks|seems|still|also)",
    "should": r"should(?:n't)?|supposed to|expect(?:ed)?|must|needs? to",
    "consider": r"consider|suggest(?:ed|ion)?|recommend(?:ed)?|severity|nit",
    "because": r"because|since|otherwise|this means|which means|results? in|causes?|leads? to"
    r"|instead of|even (?:if|though|when)",
    "you did": r"you (?:just|also|have|'ve|should|shouldn't|didn't|did|said|forgot|missed|need|were"
    r"|are|don't|keep|broke|removed|added|put|made)|you've|you're|have you|did you|why did"
    r"|why are you|i (?:said|told|asked|meant|mean|did not|didn't)",
    "first": r"first|before (?:we|you|that|this)|for now|later|separate(?:ly)?|wait|pause|hold on"
    r"|hang on|one sec|let me",
    "just": r"just|only|simply",
    "exists": r"there(?:'s| is| are) already|already (?:have|has|exists?|there|been)"
    r"|(?:pre)?existing"
    r"|we (?:just )?did|reuse|duplicat\w+|use the",
    "revert": r"revert|undo|roll ?back|restore|reset|(?:remove|delete|drop) (?:that|this|it|those)"
    r"|put (?:it|that) back",
    "sorry": r"sorry|my bad|whoops|oops|my (?:mistake|fault)",
    "praise": r"thanks|thank you|great|nice|perfect|awesome|good|love|excellent|cool",
    "curse": r"crap|damn|wtf|ugh|argh|shit|fuck\w*",
    "publish": r"commit|push|merge|pr|pull request|branch|rebase",
    "tests": r"tests?|coverage",
    "we": r"we|our|us|let's",
    "you": r"you|your",
    "i": r"i|i'm|i've|i'd|my|me",
    "please": r"please|pls",
    "maybe": r"maybe|perhaps|possibly|might|somehow|kind of",
    "or": r"or",
    "what if": r"what (?:happens|if|about)|how about",
    "documents": r"docs?|documentation|readme|changelog|issue|ticket|summary|description",
}
_SHAPES: Final[Mapping[str, str]] = {
    "log": r"(?m)^.{0,40}(?:\d\d:\d\d:\d\d|\b(?:ERROR|WARN|INFO|DEBUG|FAIL|PASS|fatal|panic)\b)"
    r"|^[ \t]*at \S+\(|Traceback|\"level\":",
    "line": r"(?<![\w./-])[\w./-]+\.[a-z]{1,4}:\d+|\blines? \d+",
    "diff": r"(?m)^[+-] ?\S|^@@ |^(?:diff|index) ",
    "fence": r"```",
    "list": r"(?m)^[ \t]*(?:\d+[.)]|[-*]) ",
    "bold": r"\*\*|(?m:^#+ )",
    "quote": r"[\"“][^\"”\n]{3,80}[\"”]",
    "prompt": r"(?m)^[ \t]*[$\u276f%>] |\bExit code\b|exit status|===|---",
    "sad": r"😭|🤦|😬|😅|🤔|😡|🙄|\.\.\.|…",
    "has ?": r"\?",
    "ends ?": r"\?\s*$",
    "ends .": r"\.\s*$",
    "really?": r"(?i)\b(?:right|yeah|no|hey|correct|ok)\s*\?",
    "capital": r"^[A-Z]",
    "digit": r"^\d",
}
_BEFORE: Final[Mapping[str, str]] = {
    "asks": r"\?\s*(?:\[[^\]]*\]?)?\s*$",
    "offers": r"(?i)\b(?:would you like|should i|shall i|do you want|want me to|let me know"
    r"|which (?:one|option|approach)|ready to|proceed|sounds? (?:good|right))\b",
    "options": r"(?m)(?:^|\s)(?:\*\*)?(?:Option )?(?:[1-9A-D])[.):]",
    "done": r"(?i)\b(?:done|completed?|all (?:tests|checks) pass|passing|successfully|fixed"
    r"|committed|pushed|created|updated|now (?:works|uses)|summary|implemented|ready)\b|✅|✓",
    "calls": r"\[\w+ \{",
    "explains": r"(?i)\b(?:because|however|the (?:issue|problem|reason)|this means|trade-?off)\b",
    "publishes": r"(?i)\b(?:commit|push|pull request|PR)\b",
}
_SIGNS = [
    *((f"sign {name}", re.compile(pattern)) for name, pattern in _OPENINGS.items()),
    *((f"has {name}", re.compile(rf"\b(?:{form})\b")) for name, form in _ANYWHERE.items()),
]
_SHAPE_SIGNS = [(f"shape {name}", re.compile(pattern)) for name, pattern in _SHAPES.items()]
_BEFORE_SIGNS = [(f"before {name}", re.compile(pattern)) for name, pattern in _BEFORE.items()]


class KindModel(Struct, frozen=True, kw_only=True):
    """The fitted weights: for each feature one of each of KINDS, and the `bias` of each kind."""

    bias: tuple[float, ...]
    weights: Mapping[str, tuple[float, ...]]

    def chances(self, features: Mapping[str, float]) -> dict[MessageKind, float]:
        """The probability of each kind; features without a weight count nothing."""
        scores = list(self.bias)
        for name, value in features.items():
            if weights := self.weights.get(name):
                scores = [score + value * each for score, each in zip(scores, weights, strict=True)]
        most = max(scores)
        raised = [math.exp(score - most) for score in scores]
        total = sum(raised)
        return {kind: each / total for kind, each in zip(KINDS, raised, strict=True)}


def kind_chances(
    text: str,
    *,
    event: Literal["message", "interrupt", "reject"] = "message",
    before: str = "",
    opens: bool = False,
) -> dict[MessageKind, float]:
    """The probability of each kind of a message; they sum to 1. Any text is read, none raises.

    `event`: `interrupt` for a message after the person stopped the agent, `reject` for the words of
    a rejected call. `before`: the end of what the agent said or did, as `agent_words` writes it.
    `opens`: the first message of a session: a task or a question."""
    if is_plan(text):
        return {kind: float(kind == "new") for kind in KINDS}
    chances = shipped_kinds().chances(features_of(text, event=event, before=before))
    if opens and event == "message":
        ask = chances["ask"]
        chances = dict.fromkeys(KINDS, 0.0) | {"new": 1.0 - ask, "ask": ask}
    return chances


def corrected(chances: Mapping[MessageKind, float]) -> float:
    """The probability that a message is a correction: `fix` or `steer`."""
    return sum(chances[kind] for kind in CORRECTIONS)


def is_plan(text: str) -> bool:
    """True for a plan or a summary that the client wrote into the message."""
    return text[:READ_CHARACTERS].lstrip().lower().startswith(_PLANS)


def agent_words(step: Step) -> str:
    """The end of what the agent said in a step, and its last call, for `before`."""
    said = " ".join(step.thought[-4 * READ_CHARACTERS :].split())[-READ_CHARACTERS:]
    if step.actions:
        last = step.actions[-1]
        said += f" [{last.name} {last.arguments[:_CALL_CHARACTERS]}]"
    return said.strip()


def features_of(text: str, *, event: str = "message", before: str = "") -> dict[str, float]:
    """The inputs of the model by name; those that are absent count as 0."""
    text = text[:READ_CHARACTERS].strip()
    plain = _CODE.sub(" § ", text).lower().replace("\u2019", "'").strip()
    words = _WORDS.findall(plain)
    before = before[-READ_CHARACTERS:]
    found = {f"event {event}": _EVENT_WEIGHT}
    found |= {name: 1.0 for name, sign in _SIGNS if sign.search(plain)}
    found |= {name: 1.0 for name, sign in _SHAPE_SIGNS if sign.search(text)}
    found |= {name: 1.0 for name, sign in _BEFORE_SIGNS if sign.search(before)}
    found["length"] = math.log1p(len(words)) / 3
    found["short"] = float(len(words) <= 3)
    found["long"] = float(len(words) > 40)
    found["code"] = min(words.count("§"), 3) / 2
    found |= dict.fromkeys(_parts(words), _WORD_WEIGHT)
    last = _ASKING.findall(_CODE.sub(" ", before).lower())[-_BEFORE_WORDS:]
    found |= dict.fromkeys((f"< {word}" for word in last), _WORD_WEIGHT)
    return found


def _parts(words: list[str]) -> Iterator[str]:
    """Words, the beginning and the end."""
    yield from words
    if words:
        yield f"^ {words[0]}"
        yield f"^ {' '.join(words[:2])}"
        yield f"{words[-1]} $"


def kinds_from_json(text: str | bytes) -> KindModel:
    """The model in a file as `python -m lab kinds` writes it: weights are hundredths."""
    data = json.loads(text)
    return KindModel(
        bias=tuple(each / 100 for each in data["bias"]),
        weights={
            name: tuple(each / 100 for each in weights) for name, weights in data["weights"].items()
        },
    )


@lru_cache(maxsize=1)
def shipped_kinds() -> KindModel:
    """The model that comes with the package, read once."""
    source = resources.files("gateway.steering.transcript").joinpath("message_kinds.json")
    return kinds_from_json(source.read_text(encoding="utf-8"))
