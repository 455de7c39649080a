"""The workload of a run, and the choice that was made when it began."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.conversations.codec import from_record, to_record
from gateway.conversations.conversation import Conversation, CurrentRun, History
from gateway.conversations.loading import merge
from gateway.conversations.workloads import workload_of
from gateway.core.routing import RunChoice
from gateway.steering.identity import Branch


def a_conversation(run: CurrentRun) -> Conversation:
    branch = Branch(conversation_id="c", served_hash=b"", signature=b"", has_tools=True)
    return Conversation(
        tenant="",
        source="new",
        external_key=None,
        created_at=0.0,
        history=History(branch=branch),
        run=run,
    )


def test_a_choice_survives_storing_and_joining() -> None:
    """Of two gateways that decided one run, the choice that was stored first stays."""
    first = RunChoice(model="small", default="big", probabilities={"small": 0.9, "big": 0.1})
    run = CurrentRun()
    run.memory = replace(run.memory, choice=first)
    stored = from_record(to_record(a_conversation(run), 0, 0.0))
    assert stored.run.memory.choice == first
    other = CurrentRun()
    other.memory = replace(other.memory, choice=RunChoice(model="big", default="big"))
    conversation = a_conversation(other)
    merge(conversation, stored, tokens=0)
    assert conversation.run.memory.choice == first


def test_what_makes_a_workload() -> None:
    """Client, tools and requested model; not versions or order."""
    tools = ("read", "write")
    known = workload_of("t", "claude-cli/2.1.3", tools, "big")
    assert workload_of("t", "claude-cli/2.2.0", tools[::-1], "big") == known
    others = [
        workload_of("t", "codex/1", tools, "big"),
        workload_of("t", "claude-cli/2", tools[:1], "big"),
        workload_of("t", "claude-cli/2", tools, "small"),
        workload_of("t", "claude-cli/2", (), "big"),
    ]
    assert len({each.key for each in (known, *others)}) == 5
