"""Pages about many runs: the health of the selected ones, and the audit log."""

from collections.abc import Mapping
from functools import partial

from gateway.api.audit import acts_of, audit_log
from gateway.core.monitors import MONITORS
from gateway.features.pages.pages import Page, Visit, counted
from gateway.features.pages.runs import chosen, filter_values
from gateway.observability.metrics import UNSTEERED_WORDS
from gateway.reporting.wrong_alarms import alarms_by_project
from gateway.stores.filters import STATES
from gateway.stores.health import SHOWN_RUNS, HealthSummary
from gateway.stores.severity import DANGER_COMPOSITE, SEVERITIES, WARN_COMPOSITE, severity_of
from gateway.stores.totals import RULES
from gateway.values import FieldDict


async def show_audit(visit: Visit) -> Page:
    """The audit log."""
    acts, cursor = await acts_of(audit_log(visit.runtime, visit.access), visit.values)
    shown = {
        "title": "Audit log",
        "acts": acts,
        "given": visit.given,
        "export": visit.query(cursor=None, limit=None),
        "next": visit.query(cursor=cursor) if cursor else None,
    }
    return Page(template="audit.html", values=shown)


_MOST_LISTED = 12


async def show_health(visit: Visit) -> Page:
    """Health of the runs that the filters select."""
    runs = chosen(visit)
    read = partial(visit.runtime.runs.health_summary, runs)
    if visit.values["every"]:
        summary = await counted(visit, runs.summed, read, "health", visit.query())
    else:
        summary = await read(newest=SHOWN_RUNS)
    places = visit.runtime.services.steerer.places.listed()
    closed = [each for each in places if visit.tenant in (None, each[0].tenant)]
    shown: FieldDict = {
        "link": visit.query,
        "closed": closed,
        "unrecorded": visit.tenant is None and visit.runtime.unsteered.unrecorded.total(),
        "wrong": await alarms_by_project(visit.runtime.opened.stores, visit.tenant),
    }
    if summary:
        shown |= health_values(summary)
    if visit.fragment:
        return Page(template="health_body.html", values=shown)
    values = {"title": "Health", **shown, **await filter_values(visit)}
    return Page(template="health.html", values=values)


def health_values(summary: HealthSummary) -> FieldDict:
    """The values of the page: the summary, and what is drawn."""
    fires = {name: summary.fires.get(name, 0) for name in (*MONITORS, *summary.fires)}
    return {
        "summary": summary,
        "lines": {"warn": WARN_COMPOSITE, "danger": DANGER_COMPOSITE},
        "severity_order": SEVERITIES,
        "severities": parts_of(summary.severity_runs, SEVERITIES),
        "advice": sum(n for source, n in summary.guidance.items() if source != RULES),
        "states": parts_of(summary.states, STATES),
        "fires": ranked(fires),
        "failure_types": ranked(summary.failure_types),
        "models": ranked(summary.models),
        "unsteered": ranked(
            {UNSTEERED_WORDS.get(r, r): calls for r, calls in summary.unsteered.items()}
        ),
        "agents": [(agent, severity_of(agent.peak_composite)) for agent in summary.by_agent],
    }


def parts_of(counts: Mapping[str, int], order: tuple[str, ...]) -> list[tuple[str, int, float]]:
    """(name, count, share of all) in a fixed order, without names that never occurred."""
    total = sum(counts.values())
    return [(name, counts[name], counts[name] / total) for name in order if counts.get(name)]


def ranked(counts: Mapping[str, int]) -> list[tuple[str, int, float]]:
    """(name, count, share of the most frequent), most frequent first."""
    most = max(counts.values(), default=0) or 1
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_LISTED]
    return [(name, count, count / most) for name, count in listed]
