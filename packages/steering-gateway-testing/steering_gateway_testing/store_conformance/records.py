"""Records to store: small and valid, each different from the others."""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import replace

from gateway.core.step import Action
from gateway.stores.records import (
    CallRecord,
    CallRow,
    ConversationRecord,
    InjectionRow,
    PrefixHashRecord,
    PromptMessage,
    RunUpdate,
    StepContent,
    StepRow,
)

START = 1_700_000_000.0
TENANT = "acme"


def digest(*parts: object) -> bytes:
    """Sixteen bytes in place of the digest of a message history."""
    return hashlib.sha256(repr(parts).encode()).digest()[:16]


def history(name: str, length: int) -> list[bytes]:
    """The chained digests of a history of `length` messages; `name` is its first message."""
    return [digest(name, position) for position in range(1, length + 1)]


def a_conversation(id: str = "c1", **changes: Any) -> ConversationRecord:
    """A conversation that is not stored yet."""
    values: dict[str, Any] = {
        "id": id,
        "tenant": TENANT,
        "source": "prefix",
        "created_at": START,
        "updated_at": START,
        "served_head": digest(id),
        "message_count": 1,
        "signature": b"\x01\x02",
        "has_tools": True,
        "state": b'{"v": 1}',
    }
    return ConversationRecord(**(values | changes))


def a_head(conversation_id: str, digests: list[bytes], **changes: Any) -> PrefixHashRecord:
    """The prefix hash at the end of a history."""
    values: dict[str, Any] = {
        "tenant": TENANT,
        "root": digests[0],
        "digest": digests[-1],
        "conversation_id": conversation_id,
        "position": len(digests),
    }
    return PrefixHashRecord(**(values | changes))


def a_run(id: str = "r1", **changes: Any) -> RunUpdate:
    """A run that has not ended."""
    values: dict[str, Any] = {
        "id": id,
        "started_at": START,
        "updated_at": START,
        "state": "NORMAL",
        "agent": "coder",
        "task_preview": "Fix the failing test",
        "policy_digest": "p1",
        "identity_source": "prefix",
        "model_requested": "large",
    }
    return RunUpdate(**(values | changes))


def a_chat(request_id: str = "q1", **changes: Any) -> CallRow:
    """A successful call whose price is known."""
    values: dict[str, Any] = {
        "request_id": request_id,
        "model_requested": "large",
        "model_asked": "small",
        "model_served": "small-2026",
        "deployment": "d1",
        "lane": "native",
        "finish_reason": "tool_calls",
        "input_tokens": 100,
        "cached_tokens": 80,
        "cache_write_tokens": 5,
        "output_tokens": 20,
        "reasoning_tokens": 7,
        "cost_usd": 0.25,
        "cost_unsteered_usd": 1.0,
        "latency_s": 1.5,
        "first_byte_s": 0.5,
        "overhead_ms": 0.75,
        "timings_ms": {"identify": 0.25, "decide": 0.5},
        "streamed": True,
        "reasons": ("state:FAST",),
    }
    return CallRow(**(values | changes))


def some_content(**changes: Any) -> StepContent:
    """The texts of a step with one tool call."""
    action = Action(name="bash", arguments='{"cmd": "ls"}', observation="a b", is_error=False)
    values: dict[str, Any] = {
        "messages": (PromptMessage(role="user", text="Fix the failing test"),),
        "thought": "Let me look.",
        "reasoning": "Listing first.",
        "actions": (action,),
        "reply_text": "Found it.",
        "reply_actions": (Action(name="edit", arguments='{"path": "a"}'),),
    }
    return StepContent(**(values | changes))


def a_step(index: int = 1, run_id: str = "r1", **changes: Any) -> StepRow:
    """A scored step with a call."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "step_index": index,
        "at": START + index,
        "state": "NORMAL",
        "difficulty": 0.5,
        "scores": {"streak": 0.25, "hedge": 0.0},
        "composite": 0.25,
        "call": a_chat(f"q{index}"),
        "content": some_content(),
    }
    return StepRow(**(values | changes))


def a_first_step(run_id: str = "r1", **changes: Any) -> StepRow:
    """The first call of a run: there is nothing to score yet."""
    first: dict[str, Any] = {"state": "INIT", "difficulty": None, "scores": {}, "composite": None}
    return a_step(0, run_id, **(first | changes))


def an_injection(index: int = 1, run_id: str = "r1", **changes: Any) -> InjectionRow:
    """One piece of retrieved guidance."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "step_index": index,
        "ordinal": 0,
        "source": "e1",
        "tier": "e1",
        "pattern_id": "p-7",
        "similarity": 0.5,
        "failure_type": "loop",
        "severity": "warn",
        "text": "Try another way.",
        "placement": "tail",
        "message_position": 4,
    }
    return InjectionRow(**(values | changes))


def a_call(**changes: Any) -> CallRecord:
    """The first call of conversation c1 and of its run r1."""
    values: dict[str, Any] = {
        "conversation": a_conversation(),
        "heads": (),
        "runs": (a_run(),),
        "steps": (a_first_step(),),
        "injections": (),
    }
    return CallRecord(**(values | changes))


def one_run(number: int, **changes: Any) -> CallRecord:
    """A separate conversation with one run of two steps; `changes` apply to the run."""
    conversation_id, run_id = f"c{number:04}", f"r{number:04}"
    tenant = changes.pop("tenant", TENANT)
    steps = changes.pop("steps", (a_first_step(run_id), a_step(1, run_id)))
    at = START + number
    run = a_run(run_id, **({"started_at": at, "updated_at": at} | changes))
    return a_call(
        conversation=a_conversation(
            conversation_id, tenant=tenant, created_at=run.started_at, updated_at=run.updated_at
        ),
        runs=(run,),
        steps=tuple(replace(step, run_id=run_id) for step in steps),
    )
