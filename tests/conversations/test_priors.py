"""What was known of a workload when a run began stays with the run."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.conversations.codec import from_record, to_record
from gateway.conversations.conversation import Conversation, CurrentRun, History
from gateway.conversations.loading import merge
from gateway.conversations.workloads import workload_of
from gateway.steering.identity import Branch
from gateway.steering.policy import Policy
from gateway.steering.routing_policy import RunChoice
from gateway.steering.scoring.risk import NO_OUTCOMES, WorkloadPrior

GOOD, BAD = WorkloadPrior(solved=30, failed=3), WorkloadPrior(solved=3, failed=30)


def a_transcript(runs: int) -> list[dict[str, Any]]:
    """Runs of two steps each, with their final answers."""
    messages: list[dict[str, Any]] = []
    for run in range(runs):
        messages.append({"role": "user", "content": f"Task {run}."})
        for step in range(2):
            function = {"name": "bash", "arguments": f'{{"command": "ls {run}{step}"}}'}
            call = {"id": f"c{run}{step}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
        messages.append({"role": "assistant", "content": "Done."})
    return messages


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


def risks(run: CurrentRun, messages: list[dict[str, Any]], prior: WorkloadPrior) -> list[float]:
    """The risk of every step that is scored now, for runs that begin with this prior."""
    fold = run.ready_fold(Policy(), prior=prior)
    return [outcome.risk.probability for outcome in fold.extend(messages)]


def test_a_run_keeps_the_prior_it_began_with() -> None:
    """Outcomes that come meanwhile count for the next run; after a restart it is the same."""
    messages = a_transcript(2)
    run = CurrentRun()
    first = risks(run, messages[:3], GOOD)
    later = risks(run, messages[:5], BAD)
    assert max(first + later) < 0.5
    second = risks(run, messages, BAD)
    assert min(second) > 0.5
    run.index = 1
    restarted = from_record(to_record(a_conversation(run), 0, 0.0)).run
    assert risks(restarted, messages, GOOD)[-2:] == second[-2:]


def test_without_outcomes_nothing_is_stored_of_it() -> None:
    """The stored state is what it was before there were priors; a run begun so stays so."""
    run = CurrentRun()
    flat = risks(run, a_transcript(1), NO_OUTCOMES)
    record = to_record(a_conversation(run), 0, 0.0)
    assert b"prior" not in record.state
    assert b"choice" not in record.state
    assert risks(from_record(record).run, a_transcript(1), BAD) == flat


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
