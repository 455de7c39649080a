"""Finds the sub-agent that sends a request: by its headers, or by the call of its parent. Pure.

A request aside, a fork and a main agent after a compaction are none. Where nothing says exactly
that another agent has started this one, it is none either."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gateway.data_files import read_toml
from gateway.steering.evidence.action_facts import describe
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

    id: str  # the conversation that began it; its forks have the same
    kind: str = UNNAMED  # as its client names it, such as `Explore`
    task: str = ""  # in a few words; "" if unknown
    since: int = 0  # messages at the beginning of its history that are its parent's


class Order(Value):
    """A call that may start a sub-agent, or what the sub-agent's own log says of it."""

    prompt: str = ""  # digest of the beginning of its prompt, as `prompt_digest` gives it
    kind: str = ""  # such as "Explore"; "" if unknown
    task: str = ""  # in a few words; "" if unknown

    @property
    def name(self) -> str:
        """A key for an order that is known by its task."""
        return f"task {self.task}"


class _Sign(Value):
    """A row of `sub_agents.toml`."""

    header: str  # that has to be there
    only: Mapping[str, frozenset[str]]  # the values that other headers may have
    needs: tuple[str, ...]  # further headers that have to be there
    agents: tuple[str, ...]  # patterns of the client's program; any, if empty
    kind: str  # header with the kind; "" for none
    task: str  # header with the task

    def fits(self, headers: Texts) -> bool:
        """True if a request with these headers, in lower case, is a sub-agent's."""
        if not headers.get(self.header, "").strip():
            return False
        if any(headers.get(name, "") not in values for name, values in self.only.items()):
            return False
        client = headers.get("user-agent", "").partition(" ")[0].lower()
        known = not self.agents or any(fnmatchcase(client, each) for each in self.agents)
        return known and all(name in headers for name in self.needs)


_SIGNS = [
    _Sign(
        header=row["header"],
        only={name: frozenset(values) for name, values in row.get("only", {}).items()},
        needs=tuple(row.get("with", ())),
        agents=tuple(row.get("agents", ())),
        kind=row.get("kind", ""),
        task=row.get("task", ""),
    )
    for row in read_toml(__package__, "sub_agents.toml")["signs"]
]
_HEADERS = frozenset(sign.header for sign in _SIGNS)


def signed(headers: Texts) -> Order | None:
    """The sub-agent that sends these headers; None: they do not say that it is one."""
    if _HEADERS.isdisjoint(headers):
        return None
    sign = next((each for each in _SIGNS if each.fits(headers)), None)
    if sign is None:
        return None
    return Order(kind=_read(headers, sign.kind), task=_read(headers, sign.task).rpartition("/")[2])


def _read(headers: Texts, source: str) -> str:
    """The text of a header, or of a member of one that is JSON."""
    name, dot, member = source.partition(".")
    text = headers.get(name, "")
    if not dot:
        return text.strip()[:_MOST_NAME]
    try:
        return text_at(as_mapping(json.loads(text)), member)[:_MOST_NAME]
    except (ValueError, RecursionError):
        return ""


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
    return hashlib.sha256(beginning.encode("utf-8", "replace")).hexdigest()[:16]


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
    return next(filter(None, (text_at(values, name) for name in names)), "")


_READ = 1000  # messages, the newest, of which a report tells
_FILES = 20  # files that it names
_CALLS = 5  # calls, the newest
_CALL = 160  # characters of each
_WORDS = 2000  # characters of the last words


def report_of(transcript: Sequence[Any]) -> str:
    """A stopped sub-agent's work by its own history, for the agent that has started it: the files
    that it changed, its last calls, its last words."""
    files: dict[str, None] = {}
    done = list[str]()
    words = ""
    for step in extract(transcript[-_READ:]):
        words = step.thought.strip() or words
        for facts in describe(step).actions:
            files.update((edit.path, None) for edit in facts.edits)
            label = " ".join(facts.text.label.split())[:_CALL]
            done.append(f"- {label}{' (failed)' * bool(facts.failure)}")
    said = ["The task is not finished. Done so far, by the calls of this agent:"]
    if files:
        said.append(f"Files changed: {', '.join(list(files)[-_FILES:])}")
    if done:
        said += [f"Last calls ({len(done)} in all):", *done[-_CALLS:]]
    else:
        said.append("No call of a tool.")
    if words:
        said.append(f"Last words: {words[-_WORDS:]}")
    return "\n".join(said)
