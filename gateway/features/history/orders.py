"""Calls that start a sub-agent, by which the sub-agent's own log is known again."""

import hashlib
from collections.abc import Iterable, Iterator

import orjson

from gateway.features.history.log_file import LogFile
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.user_words import user_words
from gateway.text.secrets import mask_repeated
from gateway.values import Fields, Value
from gateway.wire.coerce import as_mapping, text_at


class Order(Value):
    """A sub-agent's start: what the call says, or the sub-agent's own log."""

    prompt: str = ""  # digest of the beginning of its prompt, as `prompt_digest` gives it
    kind: str = ""  # such as "Explore"; "" if unknown
    task: str = ""  # in a few words; "" if unknown


def order_beside(log: LogFile) -> Order:
    """The order that newer versions of some clients write into a file beside a sub-agent's log."""
    path = log.path.with_name(f"{log.stem}.meta.json")
    if not path.is_file():
        return Order()
    noted = as_mapping(LogFile(path).document())
    return Order(
        kind=text_at(noted, "agentType"), task=mask_repeated(text_at(noted, "description"))
    )


_PROMPTS = ("prompt", "message", "task", "query", "objective", "instructions", "input")
_KINDS = ("subagent_type", "agent_type", "agent", "agent_name", "subagent", "mode")
_TASKS = ("description", "task_name", "title", "name")
"""Arguments of calls that start a sub-agent. Source: the tools of Claude Code, opencode, Qwen Code,
Codex, Copilot CLI and Gemini CLI."""
_PROMPT = 400  # characters: clients add to the end of a prompt


def prompt_digest(text: str) -> str:
    """A short name of the beginning of a prompt; "" for one that is too short to tell."""
    beginning = " ".join(text[:_PROMPT].split())
    if len(beginning) < 8:
        return ""
    return hashlib.sha256(beginning.encode()).hexdigest()[:16]


def orders_of(messages: Iterable[Fields]) -> Iterator[Order]:
    """The calls in these messages that may have started a sub-agent: all that have a prompt."""
    for message in messages:
        if message.get("role") != "assistant":
            continue
        for call in read_calls(message, read_content(message.get("content"))):
            try:
                values = as_mapping(orjson.loads(call.arguments))
            except orjson.JSONDecodeError:
                continue
            kind = _first(values, _KINDS)
            prompt = _first(values, _PROMPTS)
            digest = prompt_digest(user_words(prompt))
            if digest:
                task = _first(values, _TASKS)
                yield Order(prompt=digest, kind=kind or call.name, task=mask_repeated(task))


def _first(values: Fields, names: Iterable[str]) -> str:
    """The first of these texts that is not empty."""
    return next(filter(None, (text_at(values, name) for name in names)), "")
