"""Calls that agents write as text: listed calls, ReAct, and a block of code that gets run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping

from msgspec import Struct

from gateway.steering.transcript.content import RequestedCall, json_text
from gateway.steering.word_lists import word_list
from gateway.wire.coerce import as_text

SHELL = "bash"
PYTHON = "python_interpreter"

_SHELL_FENCES = frozenset(
    {"bash", "sh", "shell", "zsh", "console", "terminal", "mswea_bash_command"}
)
_TAGS: Mapping[str, str] = {
    "code": PYTHON,
    "bash": SHELL,
    "execute_bash": SHELL,
    "mswea_bash_command": SHELL,
}
_FENCE = re.compile(r"```[ \t]*+([\w+-]*+)[ \t]*+\r?\n(.*?)```", re.DOTALL)
_LISTED = re.compile(r"^Calling tools:\s*(?=\[)", re.MULTILINE)
_LISTED_NAME = re.compile(r"['\"]name['\"]:\s*['\"]([^'\"]*)")
_LABEL = re.compile(
    r"^[ \t]*(?:\*\*)?(Thought|Action Input|Action|Observation|Final Answer)(?:[ \t]\d+)?"
    r"(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*",
    re.MULTILINE,
)
_BRACKETED = re.compile(r"([\w.\- ]+)\[(.*)\]", re.DOTALL)
_BLOB = re.compile(r"(?:```(?:json)?\s*)?(\{.*\})(?:\s*```)?", re.DOTALL)
_THOUGHT_LABEL = re.compile(r"\A\s*(?:THOUGHT|Thought):\s*")
_CALL_ID = r"(?:call id: [^\n]*\n\s*)?"
_OBSERVATION = re.compile(rf"\s*{_CALL_ID}observation:", re.IGNORECASE)
_ANSWER_LABEL = re.compile(rf"\A\s*{_CALL_ID}(?:observation:[ \t]*\n?)?", re.IGNORECASE)

# The instruction every run-my-block agent gives: one block or command per reply.
_ONE_BLOCK = re.compile(
    r"\b(?:response|reply|respond|answer|output)s?\b[^\n]{0,80}"
    r"\b(?:exactly|only|single|one)\b[^\n]{0,40}\b(?:block|command|action)\b",
    re.IGNORECASE,
)
_OUTPUT = re.compile(
    r"\s*(?:<(?:returncode|exit_code|output|stdout|exception)\b|observation:|output:|stdout\b"
    r"|exit ?code\b|exit status\b|execution (?:output|result|log)s?\b|command output\b)",
    re.IGNORECASE,
)
_COMPLAINT = re.compile(
    r"\bexactly one\b[^\n]{0,60}\b(?:action|call|block|command)\b"
    r"|\bno tool calls? (?:was |were )?found\b"
    r"|\bdid(?: not|n't) (?:use|include|contain|make|call) (?:any|a) (?:tool|function)\b"
    r"|\A\s*format error\b",
    re.IGNORECASE,
)
_NUDGE = re.compile(
    r"\s*(?:please\s+)?(?:continue|proceed|go on|go ahead|keep going|carry on)\b"
    rf"|\s*(?:{'|'.join(word_list('text_protocols', 'nudges_unspaced'))})"
    rf"|\s*(?:{'|'.join(word_list('text_protocols', 'nudge_words'))})\b",
    re.IGNORECASE,
)
_HARNESS_REPLY = re.compile(rf"\s*{_CALL_ID}(?:observation|error):", re.IGNORECASE)
_COMPLAINT_CHARS = 2000
_REPLY_CHARS = 262_144
"""A longer reply is content: no model's output limit lets it write a call behind so much text."""


class TextCalls(Struct, frozen=True, kw_only=True):
    """Calls found in a reply, and the rest of it as the thought."""

    thought: str
    calls: tuple[RequestedCall, ...]


def find_calls(reply: str) -> TextCalls | None:
    """The calls of a reply that names them itself: a list of calls, or ReAct; None without any."""
    if len(reply) > _REPLY_CHARS:
        return None
    if "Calling tools:" in reply:
        found = _listed(reply)
        if found is not None:
            return found
    return _react(reply) if "Action" in reply else None


def find_block(reply: str, *, unlabelled: bool) -> TextCalls | None:
    """The block of code in a reply, as one call; the answer to it shows whether it was one.

    Fences that name a shell, else tagged blocks, else, when `unlabelled` ones count, the last fence
    without a language.
    """
    if len(reply) > _REPLY_CHARS:
        return None
    fences = [match for match in _FENCE.finditer(reply) if match[1].lower() in _SHELL_FENCES]
    if fences:
        return _block(reply, SHELL, [(m.start(), m.end(), m[2]) for m in fences])
    for tag, name in _TAGS.items():
        spans = _tagged(reply, tag)
        if spans:
            return _block(reply, name, spans)
    if unlabelled:
        plain = [match for match in _FENCE.finditer(reply) if not match[1]]
        if plain:
            return _block(reply, SHELL, [(plain[-1].start(), plain[-1].end(), plain[-1][2])])
    return None


def asks_for_blocks(prompt: str) -> bool:
    """Whether a prompt instructs the model to answer with a block of code that will be run."""
    tagged = any(f"</{tag}>" in prompt for tag in _TAGS)
    if tagged and "Observation:" in prompt:
        return True
    return (tagged or "```" in prompt) and _ONE_BLOCK.search(prompt) is not None


def looks_like_output(answer: str) -> bool:
    """Whether a user message is the output of a program, not the words of a person."""
    return _OUTPUT.match(answer) is not None


def is_complaint(answer: str, *, textual: bool) -> bool:
    """Whether a user message is the harness asking again for a call it could not find.

    In a conversation whose calls are text, an observation or an error counts as well.
    """
    head = answer[:_COMPLAINT_CHARS]
    if textual and _HARNESS_REPLY.match(head):
        return True
    return _COMPLAINT.search(head) is not None


def is_nudge(answer: str) -> bool:
    """Whether a user message only asks the agent to continue."""
    return _NUDGE.match(answer) is not None


def is_observation(answer: str) -> bool:
    """Whether a user message is labelled as an observation."""
    return _OBSERVATION.match(answer) is not None


def observation_of(answer: str) -> str:
    """The result in a user message, without the labels in front."""
    return _ANSWER_LABEL.sub("", answer, count=1)


def _thought(value: str) -> str:
    return _THOUGHT_LABEL.sub("", value, count=1).strip()


def _tagged(reply: str, tag: str) -> list[tuple[int, int, str]]:
    opening, closing = f"<{tag}>", f"</{tag}>"
    spans = []
    start = reply.find(opening)
    while start >= 0:
        end = reply.find(closing, start)
        if end < 0:
            break
        spans.append((start, end + len(closing), reply[start + len(opening) : end]))
        start = reply.find(opening, end)
    return spans


def _block(reply: str, name: str, spans: list[tuple[int, int, str]]) -> TextCalls:
    kept, at = [], 0
    for start, end, _ in spans:
        kept.append(reply[at:start])
        at = end
    kept.append(reply[at:])
    code = "\n".join(body.strip() for _, _, body in spans)
    return TextCalls(
        thought=_thought("".join(kept)), calls=(RequestedCall(name=name, arguments=code),)
    )


def _listed(reply: str) -> TextCalls | None:
    """Calls that a client wrote down as a list of Python or JSON objects behind a marker."""
    head, *lists = _LISTED.split(reply)
    calls = [call for listed in lists for call in _listed_calls(listed)]
    if not calls:
        return None
    block = find_block(head, unlabelled=False)
    return TextCalls(thought=block.thought if block else _thought(head), calls=tuple(calls))


def _listed_calls(listed: str) -> list[RequestedCall]:
    source = listed.strip()
    value = _literal(source)
    if not isinstance(value, list):
        return [RequestedCall(name=name) for name in _LISTED_NAME.findall(source)]
    return [_listed_call(entry) for entry in value if isinstance(entry, dict)]


def _literal(source: str) -> object:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(source)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def _listed_call(entry: dict[object, object]) -> RequestedCall:
    inner = entry.get("function")
    function = inner if isinstance(inner, dict) else entry
    return RequestedCall(
        id=as_text(entry.get("id"), ""),
        name=as_text(function.get("name"), ""),
        arguments=json_text(function.get("arguments")),
    )


def _react(reply: str) -> TextCalls | None:
    labels = list(_LABEL.finditer(reply))
    if not labels:
        return None
    thoughts = [reply[: labels[0].start()]]
    calls: list[RequestedCall] = []
    ends = [label.start() for label in labels[1:]] + [len(reply)]
    sections = [
        (label[1], reply[label.end() : end].strip())
        for label, end in zip(labels, ends, strict=True)
    ]
    for at, (label, value) in enumerate(sections):
        if label == "Thought":
            thoughts.append(value)
        elif label == "Action":
            call = _react_call(value, sections[at + 1 : at + 3])
            if call is not None:
                calls.append(call)
    if not calls:
        return None
    thought = "\n".join(stripped for each in thoughts if (stripped := each.strip()))
    return TextCalls(thought=thought, calls=tuple(calls))


def _react_call(action: str, following: list[tuple[str, str]]) -> RequestedCall | None:
    values = dict(following)
    first = following[0][0] if following else ""
    if first == "Action Input":
        return RequestedCall(
            name=action.strip("`* "),
            arguments=values["Action Input"],
            observation=values.get("Observation") or None,
        )
    observation = (values["Observation"] or None) if first == "Observation" else None
    bracketed = _BRACKETED.fullmatch(action)
    if bracketed:
        return RequestedCall(
            name=bracketed[1].strip(), arguments=bracketed[2].strip(), observation=observation
        )
    blob = _BLOB.match(action)
    value = _literal(blob[1]) if blob else None
    if not isinstance(value, dict) or as_text(value.get("action"), "") in ("", "Final Answer"):
        return None
    return RequestedCall(
        name=value["action"],
        arguments=json_text(value.get("action_input")),
        observation=observation,
    )
