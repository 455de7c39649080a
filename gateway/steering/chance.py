"""The control arm `random`: chance decides when to act; what is done stays what it would have been.

An experiment that compares it with `on` shows whether the *timing* of interventions matters. So
the arm intervenes by the same means and within the same bounds: routes, look-ups, texts, bars,
allowances, cooldowns, dwell and capability checks are those of `on`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.steering.acting import Standing, random_switch
from gateway.steering.experiments import draw, pick
from gateway.steering.fsm import FSMState
from gateway.steering.monitors.base import FAILURE_TYPES, Readings

_HARD = (FSMState.SLOW, FSMState.SKIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stance:
    """What routing and guidance are each decided by; `reasons` say what chance had its way with."""

    routing: Standing
    guidance: Standing
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """The draws for one unit of an experiment, and the shares of the steps, in [0, 1], that act.

    Nothing is remembered between steps: the same unit and step get the same draw after a restart
    and on every replica. Routing and guidance share it, so that the rarer one acts on steps on
    which the other acts too.
    """

    experiment: str
    unit: str = ""
    routing_share: float
    guidance_share: float

    def stance(self, step: int, found: Standing, weights: Mapping[str, float]) -> Stance:
        """What to act by after the run's scored step `step`, when it stands at `found`.

        Where drawn: in SLOW (a run found in SKIP stays there) and at risk, by the trouble that a
        monitor reports or, when none does, by the unit's own drawn one. Where not: not at risk, and
        not in a hard state. A first call (step 0) has nothing scored to act on, and stays as found.
        `weights`: of the monitors, by which chance picks among them.
        """
        if step < 1:
            return Stance(routing=found, guidance=found)
        routes = random_switch(self.experiment, self.unit, step, self.routing_share)
        guides = random_switch(self.experiment, self.unit, step, self.guidance_share)
        troubled = self._troubled(found, weights)
        return Stance(
            routing=troubled if routes else _untroubled(found),
            guidance=troubled if guides else _untroubled(found),
            reasons=(_reason("routing", routes), _reason("guidance", guides)),
        )

    def _troubled(self, found: Standing, weights: Mapping[str, float]) -> Standing:
        state = FSMState.SKIP if found.state is FSMState.SKIP else FSMState.SLOW
        readings = found.readings and self._fired(found.readings, weights)
        return Standing(state=state, readings=readings, at_risk=True)

    def _fired(self, readings: Readings, weights: Mapping[str, float]) -> Readings:
        """The readings with something fired, so that there is something to speak about.

        One monitor for a unit's whole run: real runs mostly fail in one way, and texts per run are
        limited by failure type.
        """
        able = [(name, weights.get(name, 0.0)) for name in readings.scores]
        if readings.fired or not any(weight > 0 for _, weight in able):
            return readings
        name = pick(able, draw(self.experiment, f"{self.unit}#failure"))
        return replace(readings, fired=(name,), failure_type=FAILURE_TYPES[name])


def _untroubled(found: Standing) -> Standing:
    state = FSMState.NORMAL if found.state in _HARD else found.state
    return replace(found, state=state, at_risk=False)


def _reason(action: str, drawn: bool) -> str:
    return f"random: {action} {'drawn' if drawn else 'not drawn'}"
