"""A host that bills every answer, by a ledger and a price of its own."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.features.prices.price_list import LIST_NAME
from gateway.upstream.litellm_package import litellm_folders
from gateway.upstream.model_costs import default_list
from gateway.wire.message_identity import tool_names
from steering_gateway_testing import ReceivedRequest, messages
from steering_gateway_testing.routes import ApiRoute, route_of
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall, Usage

STEPS = 3
TASK = "repair the test"
SHELL = 'echo "FAILED tests/test_a.py::test_x"; false'
CODEX_SHELL = f"text((await tools.exec_command({{cmd: {json.dumps(SHELL)}}})).output);"
"""The shell for Codex's newest models, which write programs that call tools."""
CALLS = {
    "exec": ToolCall("exec", CODEX_SHELL),
    "exec_command": ToolCall("exec_command", {"cmd": SHELL}),
    "shell_command": ToolCall("shell_command", {"command": SHELL}),
    "Bash": ToolCall("Bash", {"command": SHELL, "description": "run the test"}),
    "bash": ToolCall("bash", {"command": SHELL, "description": "run the test"}),
    "run_shell_command": ToolCall(
        "run_shell_command", {"command": SHELL, "description": "test", "is_background": False}
    ),
    "run_commands": ToolCall("run_commands", {"commands": [SHELL]}),
    "shell": ToolCall("shell", {"command": SHELL}),
}


@dataclass(frozen=True, slots=True)
class Billed:
    """One answer for which the host takes money."""

    model: str
    usage: Usage
    hour: int = 0
    """Tokens written to the cache for an hour, of those written."""
    times: float = 1.0
    """What its class of service costs, times the usual."""

    @property
    def usd(self) -> float | None:
        """By the list of prices; None for a model that it does not have."""
        found = price_list().get(self.model)
        return None if found is None else price(self.usage, found, self.hour) * self.times


@functools.cache
def price_list() -> Mapping[str, Mapping[str, Any]]:
    """The list as it is in LiteLLM's package."""
    (folder,) = litellm_folders()
    listed: dict[str, Mapping[str, Any]] = json.loads((folder / LIST_NAME).read_text())
    return listed


def price(usage: Usage, entry: Mapping[str, Any], hour: int) -> float:
    """US dollars for tokens at the rates of an entry of the list, for a prompt that is short."""
    rate = float(entry["input_cost_per_token"])
    read = float(entry.get("cache_read_input_token_cost", rate))
    write = float(entry.get("cache_creation_input_token_cost", rate))
    output = float(entry["output_cost_per_token"])
    thought = float(entry.get("output_cost_per_reasoning_token", output))
    plain = usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens
    said = usage.completion_tokens - usage.reasoning_tokens
    cache = usage.cached_tokens * read + (usage.cache_write_tokens - hour) * write
    cache += hour * float(entry.get("cache_creation_input_token_cost_above_1hr", write))
    return plain * rate + cache + said * output + usage.reasoning_tokens * thought


@dataclass(slots=True)
class BillingHost:
    """Answers a script: STEPS calls of a shell, then the end. It refuses the second request of the
    task with 429, and with `cuts` breaks the answer to a later one off. Requests without a shell
    are for titles and the like; `plain`: of an agent without tools, which has no others.

    `last`: the call that ends the task, where an answer without one does not."""

    plain: bool = False
    last: ToolCall | None = None
    cuts: bool = False
    fast: bool = False
    """Whether it serves at twice the price, and says so; Gemini has no such service."""
    billed: list[Billed] = field(default_factory=list)
    side: int = 0
    cut: int = 0
    refused: int = 0
    _asked: int = 0
    _steps: int = 0

    def __call__(self, request: ReceivedRequest) -> Reply | Fault:
        """One entry of a script."""
        known = [CALLS[name] for name in _tools(request) if name in CALLS]
        if not known and not self.plain:
            self.side += 1
            return self._paid(request, Reply('{"title": "All done"}'))
        self._asked += 1
        if self._asked == (1 if self.plain else 2):
            self.refused += 1
            return Fault(FaultKind.RATE_LIMIT, retry_after="0")
        if self.cuts and self._asked == (2 if self.plain else 4):
            self.cut += 1
            return Fault(FaultKind.DROP_MID_BODY, after=4, reply=Reply("Let me look at this."))
        self._steps += 1
        if self._steps <= STEPS and known:
            said = "Let me run it again."
            return self._paid(request, Reply(said, reasoning="Hm.", tool_calls=(known[0],)))
        return self._paid(request, Reply("All done.", tool_calls=(self.last,) if self.last else ()))

    def usd(self) -> float:
        """US dollars of the ledger, at its relative's price for a model that no list has."""
        prices = default_list()
        assert prices is not None
        dollars = 0.0
        for each in self.billed:
            related = prices.relative(each.model) if each.usd is None else None
            model = related[0] if related is not None else each.model
            dollars += replace(each, model=model).usd or 0.0
        return dollars

    def owed(self) -> dict[str, float]:
        """The sums of the ledger. A model that no list has is in the dollars at no price: what the
        gateway says of it is an estimate."""
        return {
            "calls": len(self.billed),
            "cached_tokens": sum(each.usage.cached_tokens for each in self.billed),
            "tokens": sum(
                each.usage.prompt_tokens + each.usage.completion_tokens for each in self.billed
            ),
            "cost_usd": sum(each.usd or 0.0 for each in self.billed),
        }

    def _paid(self, request: ReceivedRequest, reply: Reply) -> Reply:
        """With a usage that no other answer has."""
        number, route = len(self.billed), route_of(request)
        is_messages = route is ApiRoute.MESSAGES
        usage = Usage(
            prompt_tokens=2000 + 137 * number,
            completion_tokens=60 + 3 * number,
            cached_tokens=400 + 10 * number,
            cache_write_tokens=50 + number if is_messages else 0,
            reasoning_tokens=0 if is_messages else 7 + number,
        )
        is_fast = self.fast and route is not ApiRoute.GEMINI
        hour = 20 if is_messages else 0
        more: dict[str, Any] = {"service_tier": "priority"} if is_fast else {}
        if is_messages:
            written = {"ephemeral_5m_input_tokens": 30 + number, "ephemeral_1h_input_tokens": hour}
            speed = {"speed": "fast"} if is_fast else {}
            more = {"usage": {**messages.usage_of(usage), "cache_creation": written, **speed}}
        in_path = request.path.rpartition("/models/")[2].partition(":")[0]
        times = 2.0 if is_fast else 1.0
        self.billed.append(Billed(request.model or in_path, usage, hour, times))
        return replace(reply, usage=usage, extra=more)


def _tools(request: ReceivedRequest) -> list[str]:
    """Names of the tools that a request offers, Gemini's among them."""
    groups = request.fields.get("tools") or []
    declared = [d for t in groups if isinstance(t, dict) for d in t.get("functionDeclarations", ())]
    return [*tool_names(request.fields), *(str(each.get("name")) for each in declared)]
