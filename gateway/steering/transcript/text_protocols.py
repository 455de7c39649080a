"""Calls that agents write as text: listed calls, ReAct, and a block of code that gets run."""

import ast
import json
import re

from msgspec.structs import replace

from gateway.core.step import Cue
from gateway.steering.transcript.content import RequestedCall, json_text
from gateway.steering.word_lists import word_list
from gateway.values import FieldDict, Value
from gateway.wire.coerce import as_text, objects

SHELL = "bash"
PYTHON = "python_interpreter"
_SHELL_FENCES = {"bash", "sh", "shell", "zsh", "console", "terminal", "mswea_bash_command"}
_TAGS = {"code": PYTHON} | dict.fromkeys(("bash", "execute_bash", "mswea_bash_command"), SHELL)
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
    r"(?i)\b(?:response|reply|respond|answer|output)s?\b[^\n]{0,80}"
    r"\b(?:exactly|only|single|one)\b[^\n]{0,40}\b(?:block|command|action)\b"
)
_OUTPUT = re.compile(
    r"(?i)\s*(?:<(?:returncode|exit_code|output|stdout|exception)\b|observation:|output:|stdout\b"
    r"|exit ?code\b|exit status\b|execution (?:output|result|log)s?\b|command output\b)"
)
_COMPLAINT = re.compile(
    r"(?i)\bexactly one\b[^\n]{0,60}\b(?:action|call|block|command)\b"
    r"|\bno tool calls? (?:was |were )?found\b"
    r"|\bdid(?: not|n't) (?:use|include|contain|make|call) (?:any|a) (?:tool|function)\b"
    r"|\A\s*format error\b"
)
_NUDGE = re.compile(
    r"(?i)\s*(?:(?:yes|yep|ok|okay|sure|fine|great|good)\b[\s,.!]{0,3})?(?:please\s+)?(?:continue"
    r"|proceed|go on|go ahead|keep going|carry on|(?:please )?start$|(?:just )?do it\b)\b"
    rf"|\s*(?:{'|'.join(word_list('text_protocols', 'nudges_unspaced'))})"
    rf"|\s*(?:{'|'.join(word_list('text_protocols', 'nudge_words'))})\b"
)
# What a harness says to an agent that repeats itself, and above the summary of a compaction.
_LOOP_NOTE = re.compile(
    r"(?i)\b(?:you(?: have|'ve| are|'re| (?:seem|appear) to be)?|agent)\b[^\n]{0,60}"
    r"(?:\bidentical|\bsame\b|\brepeat|\bin a row|\bloop)"
    r"|\b(?:loop|repetition|repeated (?:calls?|actions?)) (?:was |were )?detected\b"
)
_COMPACTED = re.compile(
    r"(?i)\s*(?:<(?:conversation_)?summary>|this session is being continued from a previous"
    r"|another language model started to solve|the conversation (?:was|has been) (?:compacted"
    r"|summari[sz]ed))"
)
_HARNESS_REPLY = re.compile(rf"\s*{_CALL_ID}(?:observation|error):", re.IGNORECASE)
_COMPLAINT_CHARS = 2000
_NOTE_CHARS = 600
# A longer reply is content: no model's output limit lets it write a call behind so much text.
_REPLY_CHARS = 262_144


class TextCalls(Value):
    """Calls found in the text of a reply."""

    thought: str  # the rest of the text
    calls: tuple[RequestedCall, ...]  # in the order of the text


def find_calls(reply: str) -> TextCalls | None:
    """The calls of a reply that names them itself: a list of calls, or ReAct; None without any."""
    if len(reply) > _REPLY_CHARS:
        return None
    listed = None
    if "Calling tools:" in reply:
        listed = _listed(reply)
    return listed or (_react(reply) if "Action" in reply else None)


def find_block(reply: str, *, unlabelled: bool) -> TextCalls | None:
    """The block of code in a reply, as one call: the fences that name a shell, else tagged blocks,
    else, when `unlabelled` ones count, the last fence without a language."""
    if len(reply) > _REPLY_CHARS:
        return None
    fences = [(m[1].lower(), (m.start(), m.end(), m[2])) for m in _FENCE.finditer(reply)]
    if spans := [span for language, span in fences if language in _SHELL_FENCES]:
        return _block(reply, SHELL, spans)
    for tag, name in _TAGS.items():
        if spans := _tagged(reply, tag):
            return _block(reply, name, spans)
    plain = [span for language, span in fences if unlabelled and not language]
    if plain:
        return _block(reply, SHELL, plain[-1:])
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
    """Whether a user message is the harness asking again for a call it could not find, or in a
    conversation whose calls are text (`textual`) an observation or an error."""
    head = answer[:_COMPLAINT_CHARS]
    return bool((textual and _HARNESS_REPLY.match(head)) or _COMPLAINT.search(head))


def is_nudge(answer: str) -> bool:
    """Whether a user message only asks the agent to continue."""
    return _NUDGE.match(answer) is not None


def read_cue(answer: str) -> Cue:
    """The direction that a user message gives the agent, if any; see `Cue`."""
    if is_nudge(answer):
        return "go"
    if _COMPACTED.match(answer):
        return "compacted"
    if is_loop_note(answer):
        return "reminded"
    if _COMPLAINT.search(answer[:_COMPLAINT_CHARS]):
        return "uncalled"
    return ""


def is_loop_note(text: str) -> bool:
    """Whether the beginning of a text says to the agent that it repeats itself."""
    return _LOOP_NOTE.search(text[:_NOTE_CHARS]) is not None


def answer_calls(calls: list[RequestedCall], answer: str) -> bool:
    """Add a user message as the result of the first call without one, or, if it is labelled as an
    observation, in place of a result that the model imagined; whether it was added."""
    at = next((i for i, call in enumerate(calls) if call.observation is None), None)
    if at is None and not _OBSERVATION.match(answer):
        return False
    at = len(calls) - 1 if at is None else at
    calls[at] = replace(calls[at], observation=_ANSWER_LABEL.sub("", answer, count=1))
    return True


def _thought(value: str) -> str:
    return _THOUGHT_LABEL.sub("", value, count=1).strip()


def _tagged(reply: str, tag: str) -> list[tuple[int, int, str]]:
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    spans = []
    end = 0
    while (start := reply.find(opening, end)) >= 0 and (end := reply.find(closing, start)) >= 0:
        spans.append((start, end + len(closing), reply[start + len(opening) : end]))
    return spans


def _block(reply: str, name: str, spans: list[tuple[int, int, str]]) -> TextCalls:
    ends = [0, *(end for _, end, _ in spans)]
    starts = [*(start for start, _, _ in spans), len(reply)]
    kept = "".join(reply[end:start] for end, start in zip(ends, starts, strict=True))
    code = "\n".join(body.strip() for _, _, body in spans)
    return TextCalls(thought=_thought(kept), calls=(RequestedCall(name=name, arguments=code),))


def _listed(reply: str) -> TextCalls | None:
    """Calls that a client wrote down as a list of Python or JSON objects behind a marker."""
    head, *lists = _LISTED.split(reply)
    calls = []
    for listed in lists:
        value = _literal(listed.strip())
        if isinstance(value, list):
            calls += [_listed_call(entry) for entry in objects(value)]
        else:
            calls += [RequestedCall(name=name) for name in _LISTED_NAME.findall(listed)]
    if not calls:
        return None
    block = find_block(head, unlabelled=False)
    return TextCalls(thought=block.thought if block else _thought(head), calls=tuple(calls))


def _literal(source: str) -> object:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(source)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def _listed_call(entry: FieldDict) -> RequestedCall:
    inner = entry.get("function")
    function = entry
    if isinstance(inner, dict):
        function = inner
    return RequestedCall(
        id=as_text(entry.get("id"), ""),
        name=as_text(function.get("name"), ""),
        arguments=json_text(function.get("arguments")),
    )


def _react(reply: str) -> TextCalls | None:
    head, *parts = _LABEL.split(reply)
    sections = [(label, text.strip()) for label, text in zip(parts[::2], parts[1::2], strict=True)]
    thoughts = [head.strip(), *(text for label, text in sections if label == "Thought")]
    calls = [
        _react_call(text, sections[at + 1 : at + 3])
        for at, (label, text) in enumerate(sections)
        if label == "Action"
    ]
    found = tuple([call for call in calls if call is not None])
    if found:
        return TextCalls(thought="\n".join(filter(None, thoughts)), calls=found)
    return None


def _react_call(action: str, following: list[tuple[str, str]]) -> RequestedCall | None:
    values = dict(following)
    first = following[0][0] if following else ""
    observation = values.get("Observation") or None
    if first == "Action Input":
        name = action.strip("`* ")
        arguments = values["Action Input"]
        return RequestedCall(name=name, arguments=arguments, observation=observation)
    if first != "Observation":
        observation = None
    if bracketed := _BRACKETED.fullmatch(action):
        name = bracketed[1].strip()
        arguments = bracketed[2].strip()
        return RequestedCall(name=name, arguments=arguments, observation=observation)
    blob = _BLOB.match(action)
    value = _literal(blob[1]) if blob else None
    if not isinstance(value, dict) or as_text(value.get("action"), "") in ("", "Final Answer"):
        return None
    name = value["action"]
    arguments = json_text(value.get("action_input"))
    return RequestedCall(name=name, arguments=arguments, observation=observation)
