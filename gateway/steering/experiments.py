"""Experiments: which arm a unit is in, always the same on every replica."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from gateway.steering.identity.ids import draw
from gateway.values import frozen

# Treatments of a request, and the arms of an experiment: steered; decided about, but sent
# unchanged; only observed.
MODES = ("on", "shadow", "off")


@frozen
class ExperimentSettings:
    """The running experiment. Raises ValueError: unknown arm, no share above 0, or a share out
    of range."""

    id: str = ""  # name of the experiment; empty = none runs
    # share of the units per arm (on, shadow, off), relative to their sum
    arms: Mapping[str, float] = field(default_factory=lambda: {"on": 0.5, "off": 0.5})

    def __post_init__(self) -> None:
        for arm, share in self.arms.items():
            if arm not in MODES:
                raise ValueError(f"arms.{arm}: not one of {', '.join(MODES)}")
            if share < 0:
                raise ValueError(f"arms.{arm}: must be 0 or more, and finite, got {share:g}")
        if not sum(self.arms.values()) > 0:
            raise ValueError("arms: the shares must add up to more than 0")

    def shares_of(self, experiment: str) -> Mapping[str, float] | None:
        """The shares of an experiment's arms; None for one that does not run."""
        if experiment == self.id:
            return self.arms
        return None


def assign(settings: ExperimentSettings, unit: str) -> str:
    """The arm of `unit`: one of MODES, in the proportions of the settings."""
    return pick([(arm, settings.arms.get(arm, 0.0)) for arm in MODES], draw(settings.id, unit))


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
