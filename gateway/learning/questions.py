"""Questions to a model about a run, and the check of its answer. Pure.

The answer is not trusted: what a tool wrote may have dictated it. One that repeats the excerpts,
names what the agent never called, or would do harm is refused; the others are given to an agent
only as a quotation, after an operator's approval."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from msgspec import to_builtins

from gateway.config.models import DAY_S
from gateway.learning import corrections
from gateway.learning.gate import MOST_WORDS, has_secret, language, refusal
from gateway.learning.reading import WINDOW_CALLS, ReadCallOfRun
from gateway.steering.evidence.failure_keys import KIND_WORDS, Failure
from gateway.steering.evidence.results import EMPTY
from gateway.steering.transcript.steps import Step
from gateway.wire.coerce import as_list, as_number, as_text

KIND = "distil"  # the kind of the jobs that ask a model
PROMPT_VERSION = 1  # of the question about a failure: a run is asked about once for each version
MOST_CALLS = 6  # calls shown, each with an excerpt of what was called and one of what was answered
EXCERPT_CHARS = 300
MOST_CHARS = 200  # longest text of an answer's field
LEAST_CONFIDENCE = 0.5
_COPIED_CHARS = 40  # longest piece of an excerpt that an answer may repeat


def day_start(now: float) -> float:
    """Start of the day of `now`, in UTC."""
    return now - now % DAY_S


class Refused(Exception):
    """An answer from which no lesson is made; the message is a reason of ours, for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """One call of the run: what was called and what was answered, each cut."""

    step: int
    tool: str
    called: str
    answered: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question to a model about one failure of a run."""

    failure: Failure
    excerpts: tuple[Excerpt, ...]

    def messages(self) -> list[dict[str, str]]:
        """The messages of the request."""
        data = {
            "failed_step": self.excerpts[0].step,
            "what_went_wrong": KIND_WORDS[self.failure.kind],
            "excerpts": [asdict(excerpt) for excerpt in self.excerpts],
        }
        return _asked("failure", data)


def _asked(question: str, data: object) -> list[dict[str, str]]:
    asked = language()["questions"][question]
    instruction = asked.format(most_chars=MOST_CHARS, most_words=MOST_WORDS)
    # Half of a surrogate pair cannot be encoded in UTF-8.
    text = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace").decode()
    return [{"role": "system", "content": instruction}, {"role": "user", "content": text}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Answer of a model that may become a lesson."""

    situation: str
    avoid: str
    move: str
    applies_when: str
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Question to a model about what a person said in a run of these steps."""

    said: corrections.Said
    steps: Sequence[Step]

    @property
    def _situation(self) -> corrections.Situation:
        before = self.said.before
        return corrections.situation_of(before.actions[-1] if before and before.actions else None)

    def messages(self) -> list[dict[str, str]]:
        """The messages of the request."""
        words = self.said.words[: 2 * EXCERPT_CHARS]
        data = {"said": words, "agent_was_doing": to_builtins(self._situation)}
        return _asked("rule", data)

    def rule(self, answer: str) -> corrections.Rule:
        """The rule in an answer, checked. Raises: Refused."""
        text = " ".join(answer.split()).strip("\"'")
        if text.rstrip(".").lower() in ("", "none"):
            raise Refused("the model found no rule for later work")
        refused = refusal(text, known=corrections.known_names(self.steps))
        if refused is not None and not refused.approvable:
            raise Refused(refused.reason)
        said = self.said.words[: corrections.MOST_SAID_CHARS]
        return corrections.Rule(text=text, said=said, situation=self._situation)


def worth_asking(calls: Sequence[ReadCallOfRun]) -> ReadCallOfRun | None:
    """The failed call that a model is asked about: the first that worked later, then the first of
    a failure that came again. A look-up that found nothing has no cause to ask for."""
    again: ReadCallOfRun | None = None
    times = Counter(call.key for call in calls)
    for at, call in enumerate(calls):
        if call.key is None or call.key.startswith(f"{EMPTY}|"):
            continue
        later = calls[at + 1 : at + 1 + WINDOW_CALLS]
        if any(each.works and each.reading.head == call.reading.head for each in later):
            return call
        if again is None and times[call.key] > 1:
            again = call
    return again


def question_about(calls: Sequence[ReadCallOfRun], step: int, key: str) -> Question | None:
    """The question about the failure `key` at `step`. None when the run has no such failure, or
    when that call may not be shown: a call with what looks like a credential is left out."""
    at = next((n for n, call in enumerate(calls) if call.step == step and call.key == key), None)
    if at is None:
        return None
    failure = calls[at].reading.failure
    shown = [_excerpt(call) for call in calls[at : at + 1 + WINDOW_CALLS]]
    if failure is None or shown[0] is None:
        return None
    kept = tuple(each for each in shown if each is not None)
    return Question(failure=failure, excerpts=kept[:MOST_CALLS])


def read_proposal(text: str, question: Question) -> Proposal:
    """The answer, checked. Raises: Refused."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        values = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError) as error:
        raise Refused("the answer is no JSON object") from error
    if not isinstance(values, Mapping):
        raise Refused("the answer is no JSON object")
    names = ("situation", "avoid", "move", "applies_when")
    fields = {name: " ".join(as_text(values.get(name), "").split()) for name in names}
    for name, said in fields.items():
        if len(said) > MOST_CHARS:
            raise Refused(f"{name} is longer than {MOST_CHARS} characters")
    if not fields["move"]:
        raise Refused("the model found nothing that helped")
    if not fields["situation"]:
        raise Refused("the answer does not say when it applies")
    confidence = as_number(values.get("confidence"), 0.0)
    if not LEAST_CONFIDENCE <= confidence <= 1.0:
        raise Refused("the model is not confident")
    shown, steps = {each.step for each in question.excerpts}, as_list(values.get("steps"))
    if not steps or not all(type(step) is int and step in shown for step in steps):
        raise Refused("it names no evidence, or a step that was not shown")
    for name, said in fields.items():
        _check_text(said, question, answered=name in ("situation", "avoid"))
    return Proposal(**fields, confidence=confidence)


def _excerpt(call: ReadCallOfRun) -> Excerpt | None:
    """Excerpt of a call; None if its whole text has a secret, which a cut might hide."""
    action = call.action
    if any(has_secret(text) for text in (action.name, action.arguments, action.observation)):
        return None
    return Excerpt(
        step=call.step,
        tool=call.reading.head.lstrip("$"),
        called=action.arguments[:EXCERPT_CHARS],
        answered=action.observation.strip()[:EXCERPT_CHARS],
    )


def _check_text(said: str, question: Question, *, answered: bool) -> None:
    """Raises Refused for a text that may not be advice, or repeats the run. It may name what the
    agent called, and with `answered` what it was answered."""
    parts = [f"{e.tool} {e.called} {e.answered if answered else ''}" for e in question.excerpts]
    refused = refusal(said, known=_words(" ".join(parts))) if said else None
    if refused is not None:
        raise Refused(refused.reason)
    flat = said.lower()
    source = " ".join(f"{e.called} {e.answered}" for e in question.excerpts)
    source = " ".join(source.lower().split())
    pieces = (flat[at : at + _COPIED_CHARS + 1] for at in range(len(flat) - _COPIED_CHARS))
    if any(piece in source for piece in pieces):
        raise Refused(f"it repeats more than {_COPIED_CHARS} characters of the run")


_WORD = re.compile(r"[^\s`'\",;:()\[\]{}<>=]+")


def _words(text: str) -> frozenset[str]:
    """The words of a text, and the parts of those that are joined by slashes."""
    words = [word.strip(".!?") for word in _WORD.findall(text.replace("\\n", " ").lower())]
    return frozenset([*words, *(part for word in words for part in word.split("/"))])
