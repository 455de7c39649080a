"""Kind of a message that a person typed to an agent, read to know whether they accept its work.

A linear model over signs of general English (`message_signs.toml`) and single words, fitted on
messages that were labelled by reading: `python -m lab kinds` writes `message_kinds.json`,
docs/evidence.md has its figures. Of the kinds only the sum of ACCEPTING is used: it was right in
155 of 163 unseen messages, "corrected" in .62 of 701. In other languages the model knows little
more than the shape of a message."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import exp, log1p
from typing import Literal

from gateway.core.step import Step
from gateway.data_files import read_text, read_toml
from gateway.values import Value

MessageKind = Literal["new", "go", "ask", "fix", "steer", "design", "info"]
# new: a task, or the next step that was foreseen. go: go on, approval, thanks. ask: a question
# without criticism. fix: what was delivered is wrong or incomplete. steer: corrects how the agent
# works. design: a decision about the product. info: an answer, context, output that was asked for.
KINDS: tuple[MessageKind, ...] = ("new", "go", "ask", "fix", "steer", "design", "info")
ACCEPTING: tuple[MessageKind, ...] = ("go", "new")

READ_CHARACTERS = 420  # of a message, and the end of what the agent said. Source: the labelled data
_CALL_CHARACTERS = 130  # of the arguments of the agent's call
_BEFORE_WORDS = 25  # at the end of what the agent said
_WORD_WEIGHT = 0.5  # a single word says less than a sign
_EVENT_WEIGHT = 3.0  # an act says more than a word: the penalty of the fit presses it less
# Texts that a client writes into the message when a plan was accepted or a session goes on.
_PLANS = ("implement the following plan", "this session is being continued")

_CODE = re.compile(
    r"```.*?(?:```|$)|`[^`\n]*`|https?://\S+|(?:@|(?<![~.\w-]))[~.\w-]*/[\w./-]+"
    r"|\b\w+\(\)|\b\w*[a-z][A-Z]\w*|\b\w+_\w+|--\w[\w-]*|#\d+|\b[0-9a-f]{7,}\b",
    re.DOTALL,
)
_WORDS = re.compile(r"[a-z]+(?:'[a-z]+)?|[?!§]")
_ASKING = re.compile(r"[a-z]+|[?!:.✅]")


_FOUND = read_toml(__package__, "message_signs.toml")
_SIGNS = [
    *(
        (f"sign {name}", re.compile(form.replace("FILLED", _FOUND["filled"])))
        for name, form in _FOUND["opens"].items()
    ),
    *((f"has {name}", re.compile(rf"\b(?:{form})\b")) for name, form in _FOUND["has"].items()),
]
_SHAPE_SIGNS = [(f"shape {name}", re.compile(form)) for name, form in _FOUND["shape"].items()]
_BEFORE_SIGNS = [(f"before {name}", re.compile(form)) for name, form in _FOUND["before"].items()]


class KindModel(Value):
    """The fitted weights."""

    bias: tuple[float, ...]  # one number of each of KINDS, in their order
    weights: Mapping[str, tuple[float, ...]]  # by feature, one number of each of KINDS

    def chances(self, features: Mapping[str, float]) -> dict[MessageKind, float]:
        """The probability of each kind; features without a weight count nothing."""
        scores = list(self.bias)
        for name, value in features.items():
            if weights := self.weights.get(name):
                scores = [score + value * each for score, each in zip(scores, weights, strict=True)]
        most = max(scores)
        raised = [exp(score - most) for score in scores]
        total = sum(raised)
        return {kind: each / total for kind, each in zip(KINDS, raised, strict=True)}


def kind_chances(
    text: str,
    *,
    event: Literal["message", "interrupt", "reject"] = "message",
    before: str = "",
) -> dict[MessageKind, float]:
    """The probability of each kind of a message; they sum to 1. Any text is read, none raises.
    `event`: `interrupt` for a message after the person stopped the agent, `reject` for the words of
    a rejected call. `before`: the end of what the agent said or did, as `agent_words` writes it."""
    if is_plan(text):
        return {kind: float(kind == "new") for kind in KINDS}
    return shipped_kinds().chances(features_of(text, event=event, before=before))


def accepted(chances: Mapping[MessageKind, float]) -> float:
    """The probability that a message accepts the agent's work: it goes on, or begins a new task."""
    return sum(chances[kind] for kind in ACCEPTING)


def is_plan(text: str) -> bool:
    """True for a plan or a summary that the client wrote into the message."""
    return text[:READ_CHARACTERS].lstrip().lower().startswith(_PLANS)


def agent_words(step: Step) -> str:
    """Returns the end of what the agent said in a step, and its last call; `before` is made of
    it."""
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
    found["length"] = log1p(len(words)) / 3
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
    return kinds_from_json(read_text(__package__, "message_kinds.json"))
