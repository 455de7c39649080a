"""What the stores sum up themselves is what counting row by row gives."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.backends import Stores
from gateway.stores.filters import RunFilter
from gateway.stores.health import HealthSummary
from gateway.stores.traces import RunTrace
from steering_gateway_testing.many_runs import one_run

_RUNS = 24
_BEGAN = 1_790_000_000.0


def _counted(traces: list[RunTrace]) -> dict[str, object]:
    steps = [step for trace in traces for step in trace.steps]
    calls = [step.call for step in steps if step.call is not None]
    costs = [call.cost_usd for call in calls if call.cost_usd is not None]
    outcomes = Counter(trace.run.outcome for trace in traces)
    return {
        "total_runs": len(traces),
        "success_runs": outcomes["success"],
        "failure_runs": outcomes["failure"],
        "calls": len(calls),
        "injections": sum(len(trace.injections) for trace in traces),
        "input_tokens": sum(call.input_tokens or 0 for call in calls),
        "output_tokens": sum(call.output_tokens or 0 for call in calls),
        "cost_usd": pytest.approx(sum(costs)) if costs else None,
        "states": Counter(step.state for step in steps),
        "fires": Counter(name for step in steps for name in step.fired),
        "failure_types": Counter(step.failure_type for step in steps if step.failure_type),
        "models": Counter(call.model_asked for call in calls),
        "guidance": Counter(each.source for trace in traces for each in trace.injections),
        "severity_runs": Counter(trace.run.totals.worst_severity for trace in traces),
    }


async def test_a_summary_is_a_recount(stores: Stores) -> None:
    """Every sum and counter of a health summary is that of the rows, whatever the filter."""
    chance = random.Random(11)
    for number in range(_RUNS):
        await stores.states.commit(one_run(chance, number, 6, _BEGAN + 60 * number))
    for wanted in (
        RunFilter(),
        RunFilter(tenant="acme"),
        RunFilter(since=_BEGAN + 600, outcome="failure"),
        RunFilter(state="SLOW"),
        RunFilter(agent="nobody"),
    ):
        traces = [trace async for trace in stores.runs.export_runs(wanted)]
        found: HealthSummary = await stores.runs.health_summary(wanted)
        assert {name: getattr(found, name) for name in _counted([])} == _counted(traces), wanted
        by_severity = Counter(trace.run.totals.worst_severity for trace in traces)
        assert Counter(each.severity for each in found.recent) == by_severity
