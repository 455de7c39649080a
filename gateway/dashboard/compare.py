"""Pages that compare: two runs side by side, and a run with the decisions of another policy."""

import asyncio
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import orjson
import yaml
from msgspec import Struct
from msgspec.structs import asdict
from pydantic import Field

from gateway.api.params import OneOf, Parameters, TenantParameter, Text
from gateway.api.views import step_views, thresholds
from gateway.config import Settings
from gateway.config.schema import convert
from gateway.config.settings import PRESETS
from gateway.dashboard import charts
from gateway.dashboard.charts import RunChart
from gateway.dashboard.pages import Page, Visit
from gateway.dashboard.runs import find_trace
from gateway.errors import BadRequest, ConfigError, Forbidden
from gateway.offline.playback import differences, play
from gateway.offline.recordings import parse_recording
from gateway.offline.replay import policy_of
from gateway.stores.queries import RunTrace
from gateway.stores.records import StepRow
from gateway.stores.totals import SEVERITY_WORDS, RunRecord, run_severity, step_severity, streaks
from gateway.text import formatting
from gateway.text.formatting import about
from gateway.text.sanitize import one_line

COMPARED_STEPS = 200  # steps that are listed next to each other, with what the agents did
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
    traces = [await find_trace(visit, str(run_id), content=False) for run_id in ids]
    texts = [await find_trace(visit, str(run_id), limit=COMPARED_STEPS + 1) for run_id in ids]
    left, right = (sides(trace) for trace in texts)
    limits = thresholds(visit.runtime.settings)
    shown = {
        "title": "Compare two runs",
        "runs": [trace.run for trace in traces],
        "severities": [run_severity(trace.run.totals) for trace in traces],
        "charts": [RunChart.of(trace, limits) for trace in traces],
        "draw": charts,
        "facts": facts(traces[0].run, traces[1].run),
        "rows": list(zip_longest(left, right)),
        "parted": parted(left, right),
        "most": COMPARED_STEPS,
        "keeps_texts": visit.runtime.settings.storage.store_content,
    }
    return Page(template="compare.html", values=shown)


def facts(a: RunRecord, b: RunRecord) -> list[tuple[str, str, str]]:
    """(what, of the one, of the other), with the same figures as a run's own page."""
    return [(name, one, _facts(b)[name]) for name, one in _facts(a).items()]


def _facts(run: RunRecord) -> dict[str, str]:
    totals = run.totals
    tokens = formatting.count(totals.input_tokens + totals.output_tokens)
    cached = totals.cached_tokens / totals.input_tokens if totals.input_tokens else None
    return {
        "Outcome": run.outcome or "not reported",
        "Severity": SEVERITY_WORDS[run_severity(totals)],
        "Client": one_line(run.agent, 40) or "unknown",
        "Model requested": one_line(run.model_requested, 40),
        "Models asked": ", ".join(f"{model} {calls}" for model, calls in totals.models.items()),
        "Mode": run.mode,
        "Policy": run.policy_digest[:12],
        "Steps": f"{totals.steps:,}",
        "Calls": f"{totals.calls:,}, {totals.errors} failed",
        "Cost": about(formatting.money(totals.cost_usd), totals.estimated),
        "Tokens": about(tokens, totals.estimated),
        "Input from cache": formatting.percent(cached),
        "Guidance": f"{totals.advice} without the universal rules",
        "Fired": ", ".join(f"{name} {times}" for name, times in totals.fired.items()) or "none",
        "Peak composite": formatting.score(totals.composite_peak),
        "Duration": formatting.seconds(run.duration_s),
    }


def sides(trace: RunTrace) -> list[Side]:
    """The scored steps of a run with what the agent did at each."""
    steps = [step for step in trace.steps if step.step_index > 0][:COMPARED_STEPS]
    found = []
    for step, stuck in zip(steps, streaks(steps), strict=True):
        calls = [f"{a.name} {a.arguments}" for a in step.content.actions] if step.content else []
        did = " · ".join(calls) or (step.content.thought if step.content else "")
        given = (row for row in trace.injections if row.step_index == step.step_index)
        side = Side(
            step=step,
            severity=step_severity(step, stuck),
            did=one_line(did, _WORDS),
            guidance=tuple(row.source for row in given if row.source != "e3"),
        )
        found.append(side)
    return found


def parted(left: Sequence[Side], right: Sequence[Side]) -> int | None:
    """The first step at which the agents did something else; None when they never did."""
    for a, b in zip_longest(left, right):
        if a is None or b is None or a.did != b.did:
            present = a or b
            return int(present.step.step_index)
    return None


# The sections of the config that decide about a run.
SECTIONS = (
    *("conversations", "difficulty", "fsm", "monitors", "model_routing", "model_routing_by_model"),
    *("routing", "etraces", "injection", "steering"),
)
# They name files and services of the machine, and a page is no place to try those.
_FIXED = (("difficulty", "weights_file"), ("difficulty", "judge"))
_EXAMPLE = "fsm: {slow_threshold: 0.5}\nmodel_routing: {SLOW: gpt-4.1}"


class WhatIfParameters(Parameters):
    """The other policy: the gateway's own, or a preset, with some keys changed."""

    base: Annotated[str, OneOf(("own", *PRESETS))] = "own"
    change: Annotated[str, Field(max_length=8000)] = ""


async def show_what_if(visit: Visit) -> Page:
    """The form, and where the other policy decides differently. Raises: Forbidden, NotFound."""
    if not visit.access.operator:
        raise Forbidden("only the operator may try policies")
    settings = visit.runtime.settings
    trace = await find_trace(visit)
    values: dict[str, Any] = {
        "title": "What if",
        "run": trace.run,
        "base": visit.values["base"],
        "bases": ("own", *PRESETS),
        "change": visit.values["change"],
        "example": _EXAMPLE,
        "error": None,
        "changes": None,
        "why_not": None if settings.storage.store_content else "storage.store_content is false",
    }
    asked = bool(visit.values["change"].strip()) or visit.values["base"] != "own"
    if asked and values["why_not"] is None:
        try:
            other = changed_settings(settings, visit.values["base"], visit.values["change"])
            values |= await asyncio.to_thread(_played, trace, settings, other)
        except (BadRequest, ConfigError) as error:
            values["error"] = str(error)
    return Page(template="what_if.html", values=values, status=400 if values["error"] else 200)


def changed_settings(settings: Settings, base: str, change: str) -> Settings:
    """`settings` with the keys of a preset and of `change` (YAML) replaced. Raises: BadRequest for
    what is no YAML or decides nothing about a run; ConfigError."""
    try:
        given = yaml.safe_load(change) or {}
    except yaml.YAMLError as error:
        raise BadRequest(f"change: not YAML: {error}", param="change") from None
    if not isinstance(given, Mapping):
        raise BadRequest("change: must be a mapping of sections", param="change")
    if unknown := [str(name) for name in given if name not in SECTIONS]:
        names = ", ".join(SECTIONS)
        raise BadRequest(f"change: {unknown[0][:40]!r} does not affect decisions; known: {names}")
    hints = typing.get_type_hints(Settings)
    sections = {
        name: _merged(_plain(getattr(Settings() if base != "own" else settings, name)), patch)
        for name in SECTIONS
        for patch in [_merged(PRESETS.get(base, {}).get(name, {}), given.get(name) or {})]
    }
    for section, key in _FIXED:
        sections[section][key] = _plain(getattr(getattr(settings, section), key))
    made = {name: convert(hints[name], value, name) for name, value in sections.items()}
    try:
        return dataclasses.replace(settings, **made)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _played(trace: RunTrace, settings: Settings, other: Settings) -> dict[str, Any]:
    # Step 0 is the run's first call, at which the agent has done nothing yet.
    steps = [view for view in step_views(trace) if view["step_index"] > 0]
    record = {"id": trace.run.id, "model": trace.run.model_requested, "steps": steps}
    line = orjson.dumps(record, default=_plain).decode()
    recording = parse_recording(line, trace.run.id)
    mine = play(recording, policy_of(settings))
    theirs = play(recording, policy_of(other))
    changes = []
    for found in differences(mine, theirs):
        if found["index"] < len(steps):
            if "guidance" in found:
                named = [[_piece(each) for each in side or ()] for side in found["guidance"]]
                found = {**found, "guidance": named}
            changes.append({"step": steps[found["index"]]["step_index"], **found})
    models = [[step["model"] for step in one["steps"]] for one in (mine, theirs)]
    return {
        "changes": changes,
        "steps": len(steps),
        "first": [mine["first"], theirs["first"]],
        "models": [{name: row.count(name) for name in sorted(set(row))} for row in models],
        "texts": [sum(len(s.get("guidance", ())) for s in one["steps"]) for one in (mine, theirs)],
    }


def _piece(piece: Mapping[str, Any]) -> str:
    """A piece of guidance as `x-gateway-guidance` names it."""
    detail = piece.get("failure_type") or piece.get("pattern_id")
    return f"{piece['source']}:{detail}" if detail else str(piece["source"])


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: _plain(getattr(value, f.name)) for f in fields if f.init}
    if isinstance(value, Struct):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(getattr(k, "value", k)): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return getattr(value, "value", value)


def _merged(base: Any, patch: Any) -> Any:
    """`patch` over `base`, mappings key by key."""
    if not isinstance(base, Mapping) or not isinstance(patch, Mapping):
        return patch
    merged = {key: _merged(base[key], value) for key, value in patch.items() if key in base}
    return {**base, **patch, **merged}
