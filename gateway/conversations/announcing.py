"""One recorded call as an event for those who watch: numbers and names, no content."""

from __future__ import annotations

from gateway.events import Event
from gateway.stores.records import CallRecord


def call_event(record: CallRecord) -> Event | None:
    """What `record` says about its newest step; None when it has no call."""
    steps = [step for step in record.steps if step.call is not None]
    if not steps:
        return None
    step = steps[-1]
    call = step.call
    run = next(run for run in record.runs if run.id == step.run_id)
    assert call is not None
    return {
        "type": "step",
        "tenant": record.conversation.tenant,
        "conversation_id": record.conversation.id,
        "run_id": step.run_id,
        "step": step.step_index,
        "at": step.at,
        "state": run.state,
        "ended": run.ended_at is not None,
        "outcome": run.outcome,
        "difficulty": step.difficulty,
        "composite": step.composite,
        "fired": step.fired,
        "failure_type": step.failure_type,
        "guidance": [
            f"{row.source}:{row.pattern_id or row.failure_type or 'directive'}"
            for row in record.injections
            if row.applied
        ],
        "model_requested": call.model_requested,
        "model_asked": call.model_asked,
        "status": call.status,
        "error": call.error,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost_usd": call.cost_usd,
        "latency_s": call.latency_s,
    }
