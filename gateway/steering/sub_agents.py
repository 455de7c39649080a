"""Finds the sub-agent that sends a request: by its headers, or by the call of its parent. Pure.

A request aside, a fork and a main agent after a compaction are none. Where nothing says exactly
that another agent has started this one, it is none either."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from gateway.data_files import read_toml
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.steps import extract
from gateway.steering.transcript.user_words import user_words
from gateway.values import Fields, Texts, Value
from gateway.wire.coerce import as_mapping, text_at

UNNAMED = "sub-agent"  # the kind of one whose client does not name it
_MOST_NAME = 80  # characters of a kind
_MOST_TASK = 200  # characters of a task


class SubAgent(Value, array_like=True):
    """A sub-agent, as its conversation keeps it."""

    # the conversation that began it, the same of its forks; "" for a main agent
    id: str = ""
    kind: str = ""  # as its client names it, such as `Explore`; UNNAMED where it does not
    task: str = ""  # in a few words; "" if unknown
    since: int = 0  # messages at the beginning of its history that are its parent's


NOBODY = SubAgent()


class Order(Value):
    """A call that may start a sub-agent, or what the sub-agent's own log says of it."""

    prompt: str = ""  # digest of the beginning of its prompt, as `prompt_digest` gives it
    kind: str = ""  # such as "Explore"; "" if unknown
    task: str = ""  # in a few words; "" if unknown

    @property
    def name(self) -> str:
        """A key for an order that is known by its task."""
        return f"task {self.task}"


_SIGNS: list[Mapping[str, Any]] = read_toml(__package__, "sub_agents.toml")["signs"]
HEADERS = frozenset(sign["header"] for sign in _SIGNS)


def signed(headers: Texts) -> Order | None:
    """The sub-agent that sends these headers, their names in lower case; None: they do not say that
    it is one."""
    sign = next((each for each in _SIGNS if _fits(each, headers)), None)
    if sign is None:
        return None
    task = ""
    with suppress(ValueError, RecursionError, KeyError):
        name, member = sign["task"]
        task = text_at(as_mapping(json.loads(headers[name])), member)
    kind = headers.get(sign.get("kind", ""), "").strip()
    return Order(kind=kind[:_MOST_NAME], task=task[:_MOST_TASK].rpartition("/")[2])


def _fits(sign: Mapping[str, Any], headers: Texts) -> bool:
    """True if the conditions of a row hold."""
    client = headers.get("user-agent", "").partition(" ")[0].lower()
    return (
        bool(headers.get(sign["header"], "").strip())
        and all(headers.get(name, "") in values for name, values in sign.get("only", {}).items())
        and any(fnmatchcase(client, each) for each in sign.get("agents", ["*"]))
    )


_PROMPTS = ("prompt", "message", "task", "query", "objective", "instructions", "input")
_KINDS = ("subagent_type", "agent_type", "agent", "agent_name", "subagent", "mode")
# Arguments of calls that start a sub-agent. Source: the tools of Claude Code, opencode, Qwen Code,
# Codex, Copilot CLI and Gemini CLI.
_TASKS = ("description", "task_name", "title", "name")
_PROMPT = 400  # characters: clients add to the end of a prompt


def prompt_digest(text: str) -> str:
    """A short name of the beginning of a prompt; "" for one that is too short to tell."""
    beginning = " ".join(text[:_PROMPT].split())
    if len(beginning) < 8:
        return ""
    return sha256(beginning.encode("utf-8", "replace")).hexdigest()[:16]


def orders_in(messages: Iterable[Fields]) -> Iterator[Order]:
    """The calls in these messages that may have started a sub-agent: all that have a prompt."""
    for message in messages:
        if message.get("role") != "assistant":
            continue
        for call in read_calls(message, read_content(message.get("content"))):
            try:
                values = as_mapping(json.loads(call.arguments))
            except (ValueError, RecursionError):
                continue
            digest = prompt_digest(user_words(_first(values, _PROMPTS)))
            if digest:
                kind = _first(values, _KINDS)[:_MOST_NAME]
                task = _first(values, _TASKS)[:_MOST_TASK]
                yield Order(prompt=digest, kind=kind or call.name, task=task)


def _first(values: Fields, names: Iterable[str]) -> str:
    """The first of these texts that is not empty."""
    for name in names:
        value = values.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


_READ = 1000  # messages, the newest, of which a report tells
_FILES = 20  # files that it names
_CALLS = 5  # calls, the newest
_CALL = 160  # characters of each
_WORDS = 2000  # characters of the last words


def report_of(transcript: Sequence[Any]) -> str:
    """A stopped sub-agent's work by its own history, for the agent that has started it: the files
    that it changed, its last calls, its last words."""
    from gateway.steering.evidence.action_facts import describe  # few processes need its patterns

    files: dict[str, None] = {}
    done = []
    words = "nothing"
    for step in extract(transcript[-_READ:]):
        words = step.thought.strip() or words
        for facts in describe(step).actions:
            files.update((edit.path, None) for edit in facts.edits)
            label = " ".join(facts.text.label.split())[:_CALL]
            done.append(f"\n- {label}{' (failed)' * bool(facts.failure)}")
    return (
        "The task is not finished. Done so far, by the calls of this agent:\n"
        f"Files changed: {', '.join(list(files)[-_FILES:]) or 'none that the calls name'}\n"
        f"Last of {len(done)} calls:{''.join(done[-_CALLS:])}\n"
        f"Last words: {words[-_WORDS:]}"
    )
