"""Two runs side by side: their figures, their curves, and where they part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from gateway.api.filters import TenantParameter
from gateway.api.params import Text
from gateway.api.views import thresholds
from gateway.dashboard import run_chart
from gateway.dashboard.pages import Page, Visit
from gateway.dashboard.run_chart import RunChart
from gateway.errors import BadRequest, NotFound
from gateway.stores.queries import RunTrace
from gateway.stores.records import StepRow
from gateway.stores.totals import SEVERITY_WORDS, RunRecord, run_severity, step_severity, streaks
from gateway.text import formatting
from gateway.text.formatting import about
from gateway.text.sanitize import one_line

COMPARED_STEPS = 200
"""Steps that are listed next to each other, with what the agents did."""

_WORDS = 110


class CompareParameters(TenantParameter):
    """The two runs."""

    a: Text | None = None
    b: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One step of one run, as it is listed."""

    step: StepRow
    severity: str
    did: str
    guidance: tuple[str, ...]


async def show(visit: Visit) -> Page:
    """Both runs. Raises: BadRequest, NotFound."""
    ids = (visit.values["a"], visit.values["b"])
    if not all(ids):
        raise BadRequest("choose two runs to compare: a and b", param="b")
    traces = [await _trace(visit, str(run_id), content=False) for run_id in ids]
    texts = [await _trace(visit, str(run_id), limit=COMPARED_STEPS + 1) for run_id in ids]
    left, right = (sides(trace) for trace in texts)
    limits = thresholds(visit.runtime.settings)
    return Page(
        template="compare.html",
        values={
            "title": "Compare two runs",
            "runs": [trace.run for trace in traces],
            "severities": [run_severity(trace.run.totals) for trace in traces],
            "charts": [RunChart.of(trace, limits) for trace in traces],
            "draw": run_chart,
            "facts": facts(traces[0].run, traces[1].run),
            "rows": list(zip_longest(left, right)),
            "parted": parted(left, right),
            "most": COMPARED_STEPS,
            "keeps_texts": visit.runtime.settings.storage.store_content,
        },
    )


async def _trace(visit: Visit, run_id: str, **part: Any) -> RunTrace:
    trace = await visit.runtime.runs.get_run(run_id, tenant=visit.tenant, **part)
    if trace is None:
        raise NotFound(f"there is no run {run_id[:80]!r}")
    return trace


def facts(a: RunRecord, b: RunRecord) -> list[tuple[str, str, str]]:
    """(what, of the one, of the other), with the same figures as a run's own page."""
    rows: list[tuple[str, Callable[[RunRecord], str]]] = [
        ("Outcome", lambda run: run.outcome or "not reported"),
        ("Severity", lambda run: SEVERITY_WORDS[run_severity(run.totals)]),
        ("Client", lambda run: one_line(run.agent, 40) or "unknown"),
        ("Model requested", lambda run: one_line(run.model_requested, 40)),
        ("Models asked", lambda run: ", ".join(f"{m} {n}" for m, n in run.totals.models.items())),
        ("Mode", lambda run: run.mode),
        ("Policy", lambda run: run.policy_digest[:12]),
        ("Steps", lambda run: f"{run.totals.steps:,}"),
        ("Calls", lambda run: f"{run.totals.calls:,}, {run.totals.errors} failed"),
        ("Cost", lambda run: about(formatting.money(run.totals.cost_usd), run.totals.estimated)),
        (
            "Tokens",
            lambda run: about(
                formatting.count(run.totals.input_tokens + run.totals.output_tokens),
                run.totals.estimated,
            ),
        ),
        ("Input from cache", lambda run: formatting.percent(_cached(run))),
        ("Guidance", lambda run: f"{run.totals.advice} without the universal rules"),
        ("Fired", lambda run: ", ".join(f"{m} {n}" for m, n in run.totals.fired.items()) or "none"),
        ("Peak composite", lambda run: formatting.score(run.totals.composite_peak)),
        ("Duration", lambda run: formatting.seconds(run.updated_at - run.started_at)),
    ]
    return [(name, show(a), show(b)) for name, show in rows]


def _cached(run: RunRecord) -> float | None:
    given = run.totals.input_tokens
    return run.totals.cached_tokens / given if given else None


def sides(trace: RunTrace) -> list[Side]:
    """The scored steps of a run with what the agent did at each."""
    steps = [step for step in trace.steps if step.step_index > 0][:COMPARED_STEPS]
    return [
        Side(
            step=step,
            severity=step_severity(step, stuck),
            did=_did(step),
            guidance=tuple(
                row.source
                for row in trace.injections
                if row.step_index == step.step_index and row.source != "e3"
            ),
        )
        for step, stuck in zip(steps, streaks(steps), strict=True)
    ]


def parted(left: Sequence[Side], right: Sequence[Side]) -> int | None:
    """The first step at which the agents did something else; None when they never did."""
    for a, b in zip_longest(left, right):
        if a is None or b is None or a.did != b.did:
            present = a or b
            return int(present.step.step_index)
    return None


def _did(step: StepRow) -> str:
    content = step.content
    if content is None:
        return ""
    calls = [f"{action.name} {action.arguments}" for action in content.actions]
    return one_line(" · ".join(calls) or content.thought, _WORDS)
