"""Routing by difficulty state, among the models that can serve the request."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from gateway.core.acting import ActionSignal
from gateway.core.fsm import HARD_STATES, FSMState, refuse_outside_unit
from gateway.values import Texts, Value, frozen

ROUTED_STATES = ("FAST", "NORMAL", "SLOW", "SKIP")
_NORMAL_RANK = 1
_RANK = {FSMState.FAST: 0, FSMState.SLOW: 2, FSMState.SKIP: 3}

PolicyName = Literal["states", "learned"]
Serves = Callable[[str], str | None]  # model name -> why it cannot serve the request


@frozen
class RoutingSettings:
    """Settings that choose the model, keep a run on it, and give it another one at once."""

    # `states` = the difficulty state; `learned` = the outcomes of the workload's runs
    # (docs/routing.md)
    policy: PolicyName = "states"
    regret: float = 3.0  # points of success, 0 to 100, that the chosen model may be below the best
    explore: float = 0.05  # share of a workload's runs, in [0, 1], whose model is drawn
    refresh_s: float = 30.0  # seconds between two counts of outcomes
    # steps on a model before that of an easier state may replace it, because each switch loses the
    # provider's prompt cache
    min_dwell_steps: int = 0
    # calls of a conversation for which a routed model that refused is not used
    rest_calls: int = 20
    # severity, 1 to 3, from which an alarm is routed like SLOW at once; 0 = never
    escalate_at_severity: int = 2

    def __post_init__(self) -> None:
        for name in ("min_dwell_steps", "rest_calls", "escalate_at_severity"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be 0 or more, got {getattr(self, name)}")
        if not 0.0 <= self.regret <= 100.0:
            raise ValueError(f"regret: must be 0 to 100 points, got {self.regret}")
        refuse_outside_unit("explore", self.explore)
        if self.refresh_s <= 0.0:
            raise ValueError("refresh_s: must be above 0, and finite")


class Routes(Value):
    """The models of the states. A state without an entry keeps the requested model. Raises
    ValueError: a key is not a routed state, or a model name is empty."""

    # model per state (FAST, NORMAL, SLOW, SKIP), for all requested names
    by_state: Mapping[str, str] = {}
    # the same per requested name; replaces `by_state` for that name
    by_model: Mapping[str, Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        by_model = {f"model_routing_by_model.{name}": r for name, r in self.by_model.items()}
        for path, routes in {"model_routing": self.by_state, **by_model}.items():
            for state, model in routes.items():
                if state not in ROUTED_STATES:
                    raise ValueError(f"{path}.{state}: not one of {', '.join(ROUTED_STATES)}")
                if not model:
                    raise ValueError(f"{path}.{state}: may not be empty")

    def models(self, requested: str) -> Texts:
        """The map that applies to one requested name."""
        return self.by_model.get(requested, self.by_state)


class ModelPin(Value, array_like=True):
    """The model a run is on."""

    model: str  # as it is asked upstream
    state: FSMState  # the state that selected it
    since_step: int  # scored steps of the run when it was selected


class RoutedModel(Value):
    """The model to request."""

    model: str  # as it is asked upstream
    pin: ModelPin | None  # the run's pin afterwards; None while it has the requested model
    reasons: tuple[str, ...] = ()  # why it is not the model of the state; empty when it is


class RunChoice(Value):
    """The model a run began on, and how it was chosen."""

    model: str  # as it is asked upstream
    default: str  # the model that the states would have chosen
    probabilities: Mapping[str, float] = {}  # of each candidate under the policy; they add up to 1
    chances: Mapping[str, float] = {}  # of success by model, in (0, 1)
    explored: bool = False  # the model was drawn by chance
    learned: bool = True  # False for a run of which nothing was known: its states decide

    @property
    def reason(self) -> str:
        """The decision in one line, for the run log."""
        if not self.learned:
            return f"routing: no outcomes yet, {self.model} by state"
        how = "explored" if self.explored else "learned"
        known = ", ".join(
            f"{model} {self.chances[model]:.2f} (p {share:g})"
            for model, share in self.probabilities.items()
        )
        return f"routing: {how} {self.model}; chances {known}"


class ModelPolicy(Protocol):
    """A policy that outcomes taught, such as `LearnedRouting` of `gateway/steering`."""

    def decide(
        self,
        choice: RunChoice | None,
        by_state: RoutedModel,
        pinned: ModelPin | None,
        step: int,
        state: FSMState,
    ) -> tuple[RoutedModel, RunChoice]:
        """The model of a call, and its run's choice, which is made here where `choice` is None.
        `by_state`: the route that the states choose, `state` the state that selects it."""


def routing_state(signal: ActionSignal, least_severity: int) -> tuple[FSMState, str]:
    """The state that selects the model, and a reason where it is not the run's own, else "". An
    alarm of `least_severity` or more (0 = never) is routed like SLOW at once, and so is a failure
    that was repeated in spite of advice; a run in FAST that waits for a job like NORMAL, because
    what the job brings is not known."""
    persists = 0 < least_severity <= signal.severity
    if (persists or signal.strikes) and signal.state not in HARD_STATES:
        why = "a failure is repeated in spite of advice" if signal.strikes else "the alarm persists"
        return FSMState.SLOW, f"routing: {why}"
    if signal.waits and signal.state is FSMState.FAST:
        return FSMState.NORMAL, "routing: a job is waited for"
    return signal.state, ""


def choose(
    state: FSMState,
    requested: str,
    step: int,
    *,
    routes: Routes,
    settings: RoutingSettings,
    pinned: ModelPin | None = None,
    serves: Serves | None = None,
) -> RoutedModel:
    """The model for a call made in `state` at the run's step `step`."""

    def problem_of(model: str) -> str | None:
        return serves(model) if serves is not None and model != requested else None

    rank = _RANK.get(state, _NORMAL_RANK)
    if pinned is not None and rank < _RANK.get(pinned.state, _NORMAL_RANK):
        left = settings.min_dwell_steps - (step - pinned.since_step)
        if left > 0 and problem_of(pinned.model) is None:
            reason = f"routing: {pinned.model} held for {left} more steps"
            return RoutedModel(model=pinned.model, pin=pinned, reasons=(reason,))
    models = routes.models(requested)
    chosen = requested
    reasons = []
    # SKIP falls back to SLOW's model: the reference's documentation says so, although its code
    # looks up the exact key.
    for name in ("SKIP", "SLOW") if state is FSMState.SKIP else (state.value,):
        if (model := models.get(name)) is None:
            continue
        if (problem := problem_of(model)) is None:
            chosen = model
            break
        reasons.append(f"routing: {model} not used: {problem}")
    return RoutedModel(
        model=chosen, pin=pin(chosen, state, step, before=pinned), reasons=tuple(reasons)
    )


def pin(model: str, state: FSMState, step: int, before: ModelPin | None) -> ModelPin:
    """The pin of a run at a step, given the pin before it."""
    since = before.since_step if before is not None and before.model == model else step
    return ModelPin(model=model, state=state, since_step=since)
