"""What each call of a recorded run would be routed to and given under a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gateway.steering.acting import (
    ActSettings,
    Standing,
    planned_actions,
    routed_state,
    worth_it,
)
from gateway.steering.calibration import shipped_calibration
from gateway.steering.chance import Chance, Stance
from gateway.steering.etrace.gate import Moment, note, plan
from gateway.steering.etrace.pattern import Tier
from gateway.steering.etrace.settings import EtraceSettings, Gates, InjectionSettings
from gateway.steering.etrace.state import GuidanceState, count, with_count
from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.policy import Policy
from gateway.steering.routing import Held, Routes, RoutingSettings, choose

CHARS_PER_TOKEN = 4
"""Rough size of a token; costs from it compare policies, they are no bill."""
OPEN_GATES = Gates(e1=0.0, e2=0.0)
USD_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """All that decides a replay: the core's policy, routes, guidance, and prices per model.

    `chance`: of the control arm, for recordings to be steered as its units; None = as `on`.
    """

    policy: Policy = field(default_factory=Policy)
    routes: Routes = field(default_factory=Routes)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    etraces: EtraceSettings = field(default_factory=EtraceSettings)
    injection: InjectionSettings = field(default_factory=InjectionSettings)
    acting: ActSettings = field(default_factory=ActSettings)
    chance: Chance | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)


class Guide:
    """What each call would be routed to and given, following one recording."""

    def __init__(self, settings: ReplayPolicy, requested: str, unit: str) -> None:
        self._settings = settings
        self._requested = requested
        self._chance = settings.chance and replace(settings.chance, unit=unit)
        self._weights = settings.policy.monitors.resolved_weights()
        self._run = 0
        self._guidance = GuidanceState()
        self._held: Held | None = None
        self._recent: list[Any] = []
        self._models: list[str] = []

    def next_call(self, outcome: StepOutcome | None) -> tuple[str, list[dict[str, Any]]]:
        """The model asked and the guidance given after this step."""
        if outcome is None:
            self._restart(self._run + 1)
            return self._route(Standing(state=FSMState.INIT), 0), []
        if outcome.run != self._run:
            self._restart(outcome.run)
        self._recent = [*self._recent, outcome.step][-self._settings.etraces.e2_steps :]
        standing = Standing(state=outcome.state, readings=outcome.readings)
        stance = Stance(routing=standing, guidance=standing)
        if self._chance is not None:
            stance = self._chance.stance(outcome.index, standing, self._weights)
        model = self._route(stance.routing, outcome.index)
        return model, self._guide(outcome, stance.guidance, model)

    def _restart(self, run: int) -> None:
        self._run = run
        self._guidance = GuidanceState()
        self._held = None
        self._recent = []

    def _worth(self, standing: Standing, action: str) -> bool:
        settings = self._settings
        calibration = settings.policy.difficulty.calibration or shipped_calibration()
        return worth_it(action, standing.state, standing.readings, calibration, settings.acting)

    def _route(self, standing: Standing, step: int) -> str:
        state, _ = routed_state(standing.state, partial(self._worth, standing))
        route = choose(
            state,
            self._requested,
            step,
            routes=self._settings.routes,
            settings=self._settings.routing,
            held=self._held,
        )
        self._held = route.held
        self._models.append(route.model)
        return route.model

    def _guide(self, outcome: StepOutcome, standing: Standing, model: str) -> list[dict[str, Any]]:
        settings = self._settings
        lookback = settings.etraces.e1_lookback_steps
        moment = Moment(
            step=outcome.index,
            state=standing.state,
            readings=standing.readings,
            recent=self._recent,
            model=model,
            at_risk=standing.at_risk,
        )
        planned = plan(self._guidance, moment, settings.etraces, settings.injection, OPEN_GATES)
        planned = planned_actions(planned, partial(self._worth, standing))
        given: list[dict[str, Any]] = []
        if planned.directive:
            given.append({"source": "skip"})
        state = replace(self._guidance, decided_step=outcome.index, e3_done=True)
        if told := planned.monitor:
            given.append(
                {"source": "monitor", "failure_type": told.failure_type, "severity": told.severity}
            )
            state = replace(
                state,
                monitor_count=state.monitor_count + 1,
                monitor_step=outcome.index,
                severities=with_count(state.severities, told.failure_type, told.severity),
            )
        for query in planned.queries:
            if query.tier is Tier.E3:
                continue
            given.append({"source": query.tier.value})
            state = _spent(state, query.tier, planned.failure_type)
        self._guidance = note(state, outcome.index, outcome.readings, lookback)
        return given

    def tokens(self, sizes: list[tuple[int, int]], requested: str) -> dict[str, Any]:
        """Rough tokens and USD per model; the first call went to the requested model."""
        models = [requested, *self._models]
        usage: dict[str, dict[str, float]] = {}
        for model, (sent, received) in zip(models, sizes, strict=False):
            row = usage.setdefault(model, {"calls": 0, "input": 0, "output": 0})
            row["calls"] += 1
            row["input"] += sent // CHARS_PER_TOKEN
            row["output"] += received // CHARS_PER_TOKEN
        for model, row in usage.items():
            price = self._settings.prices.get(model)
            if price is not None:
                paid = row["input"] * price.input + row["output"] * price.output
                row["usd"] = round(paid / 1e6, USD_DIGITS)
        return usage


def _spent(state: GuidanceState, tier: Tier, failure_type: str) -> GuidanceState:
    if tier is Tier.E1:
        return replace(state, e1_count=state.e1_count + 1)
    spent = count(state.e2_counts, failure_type) + 1
    return replace(state, e2_counts=with_count(state.e2_counts, failure_type, spent))
