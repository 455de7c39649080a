"""A runaway agent with a sub-agent, played by the official client of each dialect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from steering_gateway_testing import AppServer
from steering_gateway_testing.official import anthropic, openai

TASK = "Repair the parser."
OUTPUT = "FAILED tests/test_parser.py::test_empty - AssertionError"
PARAMETERS: Any = {"type": "object", "properties": {"command": {"type": "string"}}}
FUNCTION: Any = {"name": "bash", "description": "run a command", "parameters": PARAMETERS}
MODELS = {"chat": "gpt-4o-mini", "responses": "gpt-4o-mini", "messages": "claude-haiku-4-5"}
_WHOLE = {
    "chat": "get_final_completion",
    "responses": "get_final_response",
    "messages": "get_final_message",
}
"""What gives the whole answer at the end of a client's stream."""
MOST = 40
"""Calls after which a run counts as not stopped."""


class Runaway:
    """Agents of one tree that take turns; each repeats its command until an answer calls none.

    `sent`: answers with calls, that is of the scripted model. `last`: the text of the final answer.
    """

    def __init__(self, server: AppServer, dialect: str, *, streamed: bool, name: str) -> None:
        self.dialect, self.streamed = dialect, streamed
        self.sent = 0
        self.last = ""
        self._histories: dict[str, list[Any]] = {"main": [], "sub": []}
        self._headers = {
            "main": {"x-session-id": name, "user-agent": f"{name}/1"},
            "sub": {
                "x-session-id": f"{name}-sub",
                "x-parent-session-id": name,
                "user-agent": f"{name}/1",
            },
        }
        # Both clients try again by themselves as they do for their users.
        self._client: Any
        if dialect == "messages":
            self._client = anthropic.Anthropic(api_key="k", base_url=server.url)
        else:
            self._client = openai.OpenAI(api_key="k", base_url=server.base_url)

    def __enter__(self) -> Runaway:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self) -> None:
        """Call until somebody is told to stop. Raises: the client's error for a refusal."""
        for agent in self._turns():
            history = self._histories[agent]
            if not history:
                history.append({"role": "user", "content": f"{TASK} ({agent})"})
            ask = {"chat": self._chat, "responses": self._responses, "messages": self._messages}
            if not ask[self.dialect](history, {"extra_headers": self._headers[agent]}):
                return
            self.sent += 1

    def _turns(self) -> Iterator[str]:
        for turn in range(MOST):
            yield ("main", "sub")[turn % 2]

    def _answer(self, api: Any, **asked: Any) -> Any:
        """The whole answer of one of the client's interfaces, streamed or not."""
        if not self.streamed:
            return api.create(**asked)
        with api.stream(**asked) as stream:
            return getattr(stream, _WHOLE[self.dialect])()

    def _chat(self, history: list[Any], extra: dict[str, Any]) -> bool:
        answer = self._answer(
            self._client.chat.completions,
            model=MODELS["chat"],
            messages=history,
            tools=[{"type": "function", "function": FUNCTION}],
            **extra,
        )
        message = answer.choices[0].message
        self.last = message.content or ""
        if not message.tool_calls:
            assert answer.choices[0].finish_reason == "stop"
            return False
        kept = message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        history.append(kept)
        for call in message.tool_calls:
            history.append({"role": "tool", "tool_call_id": call.id, "content": OUTPUT})
        return True

    def _responses(self, history: list[Any], extra: dict[str, Any]) -> bool:
        answer = self._answer(
            self._client.responses,
            model=MODELS["responses"],
            input=history,
            tools=[{"type": "function", "strict": False, **FUNCTION}],
            store=False,
            **extra,
        )
        assert answer.status == "completed"
        self.last = answer.output_text
        calls = [item for item in answer.output if item.type == "function_call"]
        keys = {"type", "call_id", "name", "arguments"}
        for call in calls:
            history.append(call.model_dump(include=keys))
            output = {"type": "function_call_output", "call_id": call.call_id, "output": OUTPUT}
            history.append(output)
        return bool(calls)

    def _messages(self, history: list[Any], extra: dict[str, Any]) -> bool:
        answer = self._answer(
            self._client.messages,
            model=MODELS["messages"],
            max_tokens=4096,
            messages=history,
            tools=[{"name": "bash", "description": "run", "input_schema": PARAMETERS}],
            **extra,
        )
        self.last = "".join(block.text for block in answer.content if block.type == "text")
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            assert answer.stop_reason == "end_turn"
            return False
        content = [block.model_dump(exclude_none=True) for block in answer.content]
        history.append({"role": "assistant", "content": content})
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": OUTPUT} for c in calls]
        history.append({"role": "user", "content": results})
        return True
