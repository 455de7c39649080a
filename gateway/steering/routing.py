"""Which model a call is sent to: by difficulty state, among those that can serve the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.steering.fsm import FSMState

ROUTED_STATES = ("FAST", "NORMAL", "SLOW", "SKIP")

# What a state without a model of its own, or with one that cannot serve the request, falls back to;
# the requested model stands behind all of them. SKIP shares SLOW's: the
# reference's documentation says so, though its code looks the exact key up.
_NEXT_BEST: Mapping[str, tuple[str, ...]] = {
    "FAST": ("FAST",),
    "NORMAL": ("NORMAL",),
    "SLOW": ("SLOW",),
    "SKIP": ("SKIP", "SLOW"),
}

_RANK: Mapping[FSMState, int] = {
    FSMState.FAST: 0,
    FSMState.INIT: 1,
    FSMState.NORMAL: 1,
    FSMState.SLOW: 2,
    FSMState.SKIP: 3,
    FSMState.END: 1,
}

Serves = Callable[[str], str | None]
"""Model name -> why it cannot serve this request, None when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """How routes are held.

    `min_dwell_steps`: steps a model is kept before a cheaper state's model may replace it, because
    each switch throws away the provider's prompt cache; an escalation is never delayed.
    """

    min_dwell_steps: int = 0

    def __post_init__(self) -> None:
        if self.min_dwell_steps < 0:
            raise ValueError(f"min_dwell_steps: must be 0 or more, got {self.min_dwell_steps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """State -> model, for every requested name and for single ones.

    Keys are FAST, NORMAL, SLOW, SKIP, any subset; a state without an entry keeps the requested
    model. `by_model` wins over `by_state` for the names it has.

    Raises:
        ValueError: a key is not a routed state, or a model name is empty.
    """

    by_state: Mapping[str, str] = field(default_factory=dict)
    by_model: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_states("model_routing", self.by_state)
        for name, routes in self.by_model.items():
            _check_states(f"model_routing_by_model.{name}", routes)

    def models(self, requested: str) -> Mapping[str, str]:
        """The map that applies to one requested name."""
        own = self.by_model.get(requested)
        return self.by_state if own is None else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The model a run is on: since which of its steps, and the state that chose it."""

    model: str
    state: FSMState
    since_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The model to ask for, what the run holds now, and why it is not what the state maps to."""

    model: str
    held: Held
    reasons: tuple[str, ...] = ()


def choose(
    state: FSMState,
    requested: str,
    step: int,
    *,
    routes: Routes,
    settings: RoutingSettings,
    held: Held | None = None,
    serves: Serves | None = None,
) -> Route:
    """The model for a call made in `state` at the run's step `step`."""
    if held is not None and _holds(state, step, held, settings):
        able = serves is None or held.model == requested or serves(held.model) is None
        if able:
            left = settings.min_dwell_steps - (step - held.since_step)
            reason = f"routing: {held.model} held for {left} more steps"
            return Route(model=held.model, held=held, reasons=(reason,))
    model, reasons = _candidate(state, requested, routes, serves)
    kept = held is not None and held.model == model
    since = held.since_step if held is not None and kept else step
    return Route(
        model=model, held=Held(model=model, state=state, since_step=since), reasons=reasons
    )


def _holds(state: FSMState, step: int, held: Held, settings: RoutingSettings) -> bool:
    cheaper = _RANK[state] < _RANK[held.state]
    return cheaper and step - held.since_step < settings.min_dwell_steps


def _candidate(
    state: FSMState, requested: str, routes: Routes, serves: Serves | None
) -> tuple[str, tuple[str, ...]]:
    models = routes.models(requested)
    reasons: list[str] = []
    for name in _NEXT_BEST.get(state.value, ()):
        model = models.get(name)
        if model is None:
            continue
        problem = serves(model) if serves is not None and model != requested else None
        if problem is None:
            return model, tuple(reasons)
        reasons.append(f"routing: {model} not used: {problem}")
    return requested, tuple(reasons)


def _check_states(path: str, routes: Mapping[str, str]) -> None:
    for state, model in routes.items():
        if state not in ROUTED_STATES:
            raise ValueError(f"{path}.{state}: not one of {', '.join(ROUTED_STATES)}")
        if not model:
            raise ValueError(f"{path}.{state}: may not be empty")
