"""The request bodies of the bench, made from a fixed recipe: equal on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

MODEL = "bench-model"

_ID = "conversation-0000000000"
_FILES = ("parser", "lexer", "tables", "writer", "report", "cli", "config", "cache")
_TOOLS = ("read_file", "edit_file", "run_tests", "search", "list_files", "git_diff", "fetch_page")
_LINE = "    value = table.lookup(key, default=None)  # row {row}: checked against the index\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One request body, split around the place that makes each conversation its own."""

    name: str
    stream: bool
    head: bytes
    tail: bytes
    before: Body | None = None
    """The same conversation one step earlier; None where it only begins."""

    def numbered(self, number: int) -> bytes:
        """The body of conversation `number`; all have the same length."""
        return b"%bconversation-%010d%b" % (self.head, number, self.tail)

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.numbered(0))


def small(*, stream: bool = False) -> Body:
    """One short question."""
    return body("stream" if stream else "small", [_user()], stream=stream)


def tools() -> Body:
    """61 messages of an agent at work, with tool definitions: about 60 kB."""
    return agent("tools", steps=29, result_bytes=1480)


def cold() -> Body:
    """The same, always the first request of its conversation that a gateway meets."""
    return replace(tools(), name="cold", before=None)


def session() -> Body:
    """The middle of a session of 40 calls, each of which resends what was said before."""
    return agent("session", steps=20, result_bytes=1480)


def large() -> Body:
    """The same agent after reading larger files: about 400 kB."""
    return agent("large", steps=29, result_bytes=14800)


def agent(name: str, *, steps: int, result_bytes: int) -> Body:
    """A conversation of `steps` tool calls, each answered by `result_bytes` of text."""
    messages = _opening()
    for index in range(steps):
        messages += step(index, result_bytes)
    definitions = list(_definitions())
    before = body(name, messages[:-2], tools=definitions) if steps else None
    return replace(body(name, messages, tools=definitions), before=before)


def _opening() -> list[dict[str, Any]]:
    rest = {"role": "user", "content": "Keep the change small, please."}
    return [{"role": "system", "content": _system()}, _user(), rest]


def step(index: int, result_bytes: int) -> list[dict[str, Any]]:
    """One assistant message with a tool call, and the call's result."""
    tool = _TOOLS[index % len(_TOOLS)]
    path = f"src/{_FILES[index % len(_FILES)]}_{index}.py"
    arguments = json.dumps({"path": path, "query": f"symbol_{index}", "limit": 40 + index})
    thought = f"Next I look at {path}, because the failing case goes through it."
    call = {"name": tool, "arguments": arguments}
    call_id = f"call_{index:06d}"
    return [
        {
            "role": "assistant",
            "content": thought,
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": _result(path, result_bytes)},
    ]


def next_reply(body: bytes) -> dict[str, Any]:
    """The model's reply to a request of such an agent: what its next request contains."""
    return step(body.count(b'"role": "assistant"'), 0)[0]


def body(name: str, messages: list[dict[str, Any]], *, stream: bool = False, **more: Any) -> Body:
    """The body that asks for the next message after `messages`."""
    fields = {"model": MODEL, "messages": messages, **more}
    if stream:
        fields["stream"] = True
    head, tail = json.dumps(fields).split(_ID)
    return Body(name=name, stream=stream, head=head.encode(), tail=tail.encode())


def _user() -> dict[str, Any]:
    return {"role": "user", "content": f"[{_ID}] Find out why the report test fails and mend it."}


def _system() -> str:
    rules = (f"Rule {n}: read before you edit, and run the tests after it. " for n in range(40))
    return "You are a careful software engineer. " + "".join(rules)


def _result(path: str, size: int) -> str:
    lines = [f"{path}\n"]
    while sum(map(len, lines[-1:])) * len(lines) < size:
        lines.append(_LINE.format(row=len(lines)))
    return "".join(lines)[:size]


def _definitions() -> Iterator[dict[str, Any]]:
    for name in _TOOLS:
        properties = {
            key: {"type": kind, "description": f"The {key} that {name} works on; required."}
            for key, kind in (("path", "string"), ("query", "string"), ("limit", "integer"))
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {
            "name": name,
            "description": f"{name}: see the manual.",
            "parameters": parameters,
        }
        yield {"type": "function", "function": function}
