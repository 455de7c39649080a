"""What another policy would have decided on a recorded run, through the same core as a replay."""

from __future__ import annotations

import asyncio
import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import orjson
import yaml
from msgspec import Struct
from msgspec.structs import asdict
from pydantic import Field

from gateway.api.params import OneOf, Parameters
from gateway.api.views import step_views
from gateway.config import Settings
from gateway.config.schema import convert
from gateway.config.settings import PRESETS
from gateway.dashboard.pages import Page, Visit
from gateway.dashboard.run import find_trace
from gateway.errors import BadRequest, ConfigError, Forbidden
from gateway.offline.playback import differences, play
from gateway.offline.recordings import parse_recording
from gateway.offline.replay import policy_of
from gateway.stores.queries import RunTrace

SECTIONS = (
    *("conversations", "difficulty", "fsm", "monitors", "model_routing", "model_routing_by_model"),
    *("routing", "etraces", "injection", "steering"),
)
"""The sections of the config that decide about a run."""

# They name files and services of the machine, and a page is no place to try those.
_FIXED = (("difficulty", "weights_file"), ("difficulty", "judge"))
_EXAMPLE = "fsm: {slow_threshold: 0.5}\nmodel_routing: {SLOW: gpt-4.1}"


class WhatIfParameters(Parameters):
    """The other policy: the gateway's own, or a preset, with some keys changed."""

    base: Annotated[str, OneOf(("own", *PRESETS))] = "own"
    change: Annotated[str, Field(max_length=8000)] = ""


async def show(visit: Visit) -> Page:
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
    """`settings` with the keys of a preset and of `change` (YAML) replaced.

    Raises:
        BadRequest: not YAML, or a section that decides nothing about a run.
        ConfigError: an unknown key or a refused value.
    """
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
    changes = [
        {"step": steps[found["index"]]["step_index"], **_in_words(found)}
        for found in differences(mine, theirs)
        if found["index"] < len(steps)
    ]
    models = [[step["model"] for step in one["steps"]] for one in (mine, theirs)]
    return {
        "changes": changes,
        "steps": len(steps),
        "first": [mine["first"], theirs["first"]],
        "models": [{name: row.count(name) for name in sorted(set(row))} for row in models],
        "texts": [sum(len(s.get("guidance", ())) for s in one["steps"]) for one in (mine, theirs)],
    }


def _in_words(found: Mapping[str, Any]) -> dict[str, Any]:
    """A difference whose pieces of guidance are named as `x-gateway-guidance` names them."""
    if "guidance" not in found:
        return dict(found)
    named = [[_piece(each) for each in side or ()] for side in found["guidance"]]
    return {**found, "guidance": named}


def _piece(piece: Mapping[str, Any]) -> str:
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
    both = {**base, **patch}
    return {
        key: _merged(base[key], value) if key in base and key in patch else value
        for key, value in both.items()
    }
