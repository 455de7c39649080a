"""Experiments: which arm a unit is in, always the same on every replica.

In the control arm `random`, chance decides on which steps to act; the means and limits are those of
`on`, so that comparing both shows whether the *timing* of interventions matters."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from msgspec.structs import replace

from gateway.core.acting import ActionSignal, ActionSignals
from gateway.core.fsm import HARD_STATES, FSMState, refuse_outside_unit
from gateway.core.monitors import FAILURE_TYPES, Readings
from gateway.steering.identity.ids import draw
from gateway.values import Value, frozen

MODES = ("on", "shadow", "off")
"""Treatments of a request: steered; decided about, but sent unchanged; only observed."""
ARMS = ("on", "random", "shadow", "off")
"""The arms a unit may be assigned to: a mode, or `random`: `on`, but chance decides when to act."""


@frozen
class ExperimentSettings:
    """The running experiment. Raises ValueError: unknown arm, no share above 0, or a share out
    of range."""

    id: str = ""  # name of the experiment; empty = none runs
    # share of the units per arm (on, random, shadow, off), relative to their sum
    arms: Mapping[str, float] = field(default_factory=lambda: {"on": 0.5, "off": 0.5})
    # share of scored steps, in [0, 1], on which the arm `random` uses a hard state's model; source
    # of the default: docs/experiments.md
    random_routing_share: float = 0.09
    # share of scored steps, in [0, 1], on which the arm `random` injects guidance; source of the
    # default: docs/experiments.md
    random_guidance_share: float = 0.009

    def __post_init__(self) -> None:
        for arm, share in self.arms.items():
            if arm not in ARMS:
                raise ValueError(f"arms.{arm}: not one of {', '.join(ARMS)}")
            if not 0 <= share < math.inf:
                raise ValueError(f"arms.{arm}: must be 0 or more, and finite, got {share:g}")
        if not sum(self.arms.values()) > 0:
            raise ValueError("arms: the shares must add up to more than 0")
        for name in ("random_routing_share", "random_guidance_share"):
            refuse_outside_unit(name, getattr(self, name))


def mode_of(arm: str) -> str:
    """The mode of an arm's requests; that of `random` is `on`."""
    if arm == "random":
        return "on"
    return arm


def assign(settings: ExperimentSettings, unit: str) -> str:
    """The arm of `unit`: one of ARMS, in the proportions of the settings."""
    return pick([(arm, settings.arms.get(arm, 0.0)) for arm in ARMS], draw(settings.id, unit))


@frozen
class ModeOfRuns:
    """A mode that an operator gave to some runs. Empty fields match any run."""

    tenant: str = ""  # owner of the runs
    client: str = ""  # the agent's program, in lower case
    project: str = ""  # value of the runs' tag `project`
    mode: str = ""  # on, shadow or off; empty = no mode is given

    @property
    def words(self) -> str:
        """The runs in words."""
        named = (("client", self.client), ("project", self.project), ("tenant", self.tenant))
        return ", ".join(f"runs of {k} {value}" for k, value in named if value) or "all runs"

    def includes(self, tenant: str, agent: str, project: str) -> bool:
        """Whether a run is one of them."""
        named = self.client in ("", agent.partition("/")[0].lower())
        return named and self.tenant in ("", tenant) and self.project in ("", project)


@frozen
class Pilot:
    """A comparison of `on` and `shadow` by a fair coin per unit, declared in the store."""

    id: str  # unique among all pilots; part of every draw
    runs: ModeOfRuns  # the runs that take part
    # (begin, end) in epoch seconds between which units are drawn; end None = still open. Units that
    # begin between two windows are in `shadow`.
    windows: tuple[tuple[float, float | None], ...]
    most: int  # runs with an outcome after which no further unit is drawn
    over: bool = False  # the pilot was stopped, or a mode was applied
    # modes given after this pilot and earlier ones, newest first
    applied: tuple[ModeOfRuns, ...] = ()
    salt: str = ""  # secret part of the draws, so that nobody knows an arm before it is drawn

    @property
    def draws(self) -> bool:
        """Whether units that begin now are drawn."""
        return not self.over and self.windows[-1][1] is None

    def treatment(
        self, about: tuple[str, str, str], unit: str, began: float
    ) -> tuple[str | None, str]:
        """Returns the arm and the mode of a conversation that began at `began`. Arm None: it
        takes part in no comparison; mode "": the config decides. `about`: tenant, agent and
        project."""
        if not self.over and began >= self.windows[0][0] and self.runs.includes(*about):
            if any(start <= began and (end is None or began < end) for start, end in self.windows):
                arm = "shadow"
                if draw(self.id + self.salt, unit) < 0.5:
                    arm = "on"
                return arm, arm
            return None, "shadow"
        return None, next((each.mode for each in self.applied if each.includes(*about)), "")


def pick(shares: Sequence[tuple[str, float]], point: float) -> str:
    """The name whose interval contains `point`, when [0, 1) is divided in proportion and in order.
    Raises IndexError: no share is above 0."""
    given = [(name, share) for name, share in shares if share > 0]
    ends = list(accumulate(share for _, share in given))
    return given[min(bisect_right(ends, point * ends[-1]), len(given) - 1)][0]


def random_switch(experiment: str, unit: str, step: int, share: float) -> bool:
    """Whether the control arm acts on this step: true on `share` of the steps of a unit."""
    return draw(experiment, f"{unit}#{step}") < share


class RandomArm(Value):
    """The control arm for one unit: random draws in place of the run's signals. The same unit
    and step get the same draw after a restart and on every replica. Routing and guidance use
    the same draw, so that the rarer one acts only on steps on which the other acts too."""

    experiment: str  # id of the experiment; part of every draw
    unit: str = ""  # the conversation, or what the client names to be drawn together
    routing_share: float  # share of scored steps, in [0, 1], that are routed like hard ones
    guidance_share: float  # share of scored steps, in [0, 1], that may get guidance

    def signals(
        self, step: int, found: ActionSignal, weights: Mapping[str, float]
    ) -> ActionSignals:
        """The signals after the run's scored step `step`; `found` is the run's actual signal. On a
        drawn step: state SLOW (SKIP when the run is in SKIP) and at risk, with the failure that a
        monitor reports or, when none does, one drawn for the unit by the monitors' `weights`. On
        any other step: not at risk, and not in a hard state. A first call (step 0) has no score and
        keeps `found`."""
        if step < 1:
            return ActionSignals(routing=found, guidance=found)
        if found.state is FSMState.SKIP:
            state = FSMState.SKIP
        else:
            state = FSMState.SLOW
        readings = found.readings and self._fired(found.readings, weights)
        troubled = ActionSignal(state=state, readings=readings, at_risk=True)
        if found.state in HARD_STATES:
            state = FSMState.NORMAL
        else:
            state = found.state
        untroubled = replace(found, severity=0, state=state, at_risk=False)
        routes = random_switch(self.experiment, self.unit, step, share=self.routing_share)
        guides = random_switch(self.experiment, self.unit, step, share=self.guidance_share)
        return ActionSignals(
            routing=troubled if routes else untroubled,
            guidance=troubled if guides else untroubled,
            reasons=(
                f"random: routing {'drawn' if routes else 'not drawn'}",
                f"random: guidance {'drawn' if guides else 'not drawn'}",
            ),
        )

    def _fired(self, readings: Readings, weights: Mapping[str, float]) -> Readings:
        """The readings with at least one monitor fired, so that guidance has a failure to name: the
        same one for a unit's whole run, because real runs mostly fail in one way."""
        able = [(name, weights.get(name, 0.0)) for name in readings.scores]
        if readings.fired or not any(weight > 0 for _, weight in able):
            return readings
        name = pick(able, draw(self.experiment, f"{self.unit}#failure"))
        return replace(readings, fired=(name,), failure_type=FAILURE_TYPES[name])
