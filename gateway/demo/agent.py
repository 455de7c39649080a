"""The agent: a plain tool loop on the official `openai` client, without knowledge of steering."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from gateway.demo.workspace import Workspace, tool_definitions

SYSTEM = "You are a careful engineer. Repair the repository with the tools you have."
TASK = "test_orders.py fails. Find out why and repair it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call: the gateway's response headers, and what the agent did next."""

    headers: dict[str, str]
    thought: str
    action: str
    failed: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The calls of a run, and how it ended."""

    turns: tuple[Turn, ...]
    answer: str | None
    """None when the agent gave up at its limit of calls."""


def run_agent(
    client: OpenAI,
    workspace: Workspace,
    *,
    model: str,
    max_calls: int,
    on_turn: Callable[[Turn], None],
) -> Outcome:
    """Call the model until it answers without a tool call, or the limit is reached."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK},
    ]
    tools: Any = tool_definitions()
    turns: list[Turn] = []
    for _ in range(max_calls):
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, tools=tools
        )
        completion = raw.parse()
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        action, failed = "", False
        for call in message.tool_calls or ():
            if call.type != "function":
                continue
            arguments = json.loads(call.function.arguments)
            result = workspace.call(call.function.name, arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            failed = "FAILED" in result or result.startswith("error")
            action = " ".join([call.function.name, *list(arguments.values())[:1]])
        usage = completion.usage
        turn = Turn(
            headers=dict(raw.headers),
            thought=message.content or "",
            action=action,
            failed=failed,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
        )
        turns.append(turn)
        on_turn(turn)
        if not message.tool_calls:
            return Outcome(turns=tuple(turns), answer=message.content)
    return Outcome(turns=tuple(turns), answer=None)
