"""Acts on trouble that goes on in spite of advice.

The first alarm about an object gets a text. A second one about the same object, at a later step, is
the second strike: then the strongest act follows that `control.on_trouble` allows."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec.structs import replace

from gateway.core.acting import ActName
from gateway.core.guidance_plan import RECOVERED_STEPS
from gateway.core.monitors import Alarm
from gateway.values import Value

# Acts after which the call waits or is refused.
HELD: tuple[ActName, ...] = ("ask", "end")


class Act(Value):
    """The act on the second strikes at one step."""

    name: ActName | Literal[""] = ""  # "" when nothing is done
    alarms: tuple[Alarm, ...] = ()  # the second strikes

    @property
    def sentence(self) -> str:
        """The sentences of the alarms."""
        return "; ".join([alarm.sentence for alarm in self.alarms])

    @property
    def summary(self) -> str:
        """The alarms without a word of the run."""
        said = [
            f"{each.monitor}, {each.count} tries, steps {each.first_step} to {each.newest_step}"
            for each in self.alarms
        ]
        return "; ".join(said)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The act and why, for the record of the call; the sentences are in that of the step."""
        return (f"trouble: {self.name}: {self.summary}",) if self.name else ()


class Trouble(Value):
    """The trouble that a run remembers."""

    # step of the first text about an entry of the ledger, by the entry's key
    advised: Mapping[str, int] = {}
    acted: Mapping[str, int] = {}  # step of the act on an entry, by the entry's key
    # step from which the run has the model for SLOW; None while it has not
    routed: int | None = None

    def strikes(self, alarms: Iterable[Alarm], step: int) -> tuple[Alarm, ...]:
        """The alarms at this step that come after a text about their entry, and that nothing was
        done about yet: each entry is acted on once, because a person who lets such a run go on has
        decided that."""
        known = [alarm for alarm in alarms if self.advised.get(alarm.entry, step) < step]
        return tuple([alarm for alarm in known if alarm.entry not in self.acted])

    def after(self, act: Act, step: int, alarmed_at: int | None) -> "Trouble":
        """The memory after an act at this step. `alarmed_at`: the newest step with an alarm; a run
        that had none for RECOVERED_STEPS steps has its own model again."""
        recovered = alarmed_at is None or step - alarmed_at > RECOVERED_STEPS
        routed = None if recovered else self.routed
        if act.name == "route" and routed is None:
            routed = step
        acted = {alarm.entry: step for alarm in act.alarms}
        return replace(self, acted={**self.acted, **acted}, routed=routed)

    def after_text(self, alarms: Iterable[Alarm], step: int) -> "Trouble":
        """The memory after a text about these alarms."""
        advised = {alarm.entry: self.advised.get(alarm.entry, step) for alarm in alarms}
        return replace(self, advised={**self.advised, **advised})

    def merged(self, stored: "Trouble") -> "Trouble":
        """The memory of two gateways that served the run: what either has done is done."""
        routed = [at for at in (self.routed, stored.routed) if at is not None]
        return Trouble(
            advised=_earliest(self.advised, stored.advised),
            acted=_earliest(self.acted, stored.acted),
            routed=min(routed, default=None),
        )


def act_on(strikes: tuple[Alarm, ...], allowed: ActName, *, routes: bool, hands_over: bool) -> Act:
    """The strongest act on these strikes that is allowed. `routes`: a model is mapped to SLOW;
    `hands_over`: the run was not asked to hand over before. Without them these two acts are
    advice."""
    possible = {"route": routes, "hand_over": hands_over}.get(allowed, True)
    return Act(name=allowed if possible else "advise", alarms=strikes)


def _earliest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {**other, **{key: min(at, other.get(key, at)) for key, at in one.items()}}
