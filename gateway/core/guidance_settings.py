"""Settings of guidance: what is looked up, how often anything is injected, and where it goes."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from gateway.core.fsm import refuse_outside_unit
from gateway.values import frozen

# Steps between two monitor texts, by difficulty state. Source: docs/names.md, guidance of a call.
COOLDOWN_STEPS: Mapping[str, int] = {"FAST": 5, "NORMAL": 3, "SLOW": 2, "SKIP": 2}

E2When = Literal["always", "at_risk"]
E3When = Literal["tools", "always"]
Placement = Literal["auto", "system", "tail"]
Lifetime = Literal["run", "call"]


@frozen
class EtraceSettings:
    """Look-ups per tier of patterns. Source: docs/names.md, look-ups of E-traces."""

    enabled: bool = True  # false = no pattern is looked up
    e1_top_k: int = 1  # patterns of tier e1 wanted per look-up
    e1_per_run: int = 1  # injections of tier e1 in a run
    e1_steps: int = 3  # newest steps that make the text of an e1 query
    e1_composite: float = 0.15  # composite in [0, 1] above which the e1 gate opens
    e1_lookback_steps: int = 2  # steps for which a fired monitor keeps the e1 gate open
    # similarity needed for an injection; None = calibrated for the embedder
    e1_gate: float | None = None
    e2_top_k: int = 2  # patterns of tier e2 wanted per look-up
    e2_per_type: int = 1  # injections per failure type in a run; steps without one count as a type
    e2_steps: int = 5  # newest steps that make the text of an e2 query
    # `at_risk` = while the e1 gate is open; `always` = on each scored step
    e2_when: E2When = "at_risk"
    # similarity needed for an injection; None = calibrated for the embedder
    e2_gate: float | None = None
    e2_margin: float = 0.02  # similarity that a further pattern may be behind the best one
    e2_by_cause: bool = True  # patterns for the cause of the trouble come first
    e3_max: int = 5  # universal rules of a run
    e3_max_tokens: int = 120  # tokens of all universal rules of a run, estimated; 0 = any number
    # `tools` = on first calls that offer tools; `always` = on each first call
    e3_when: E3When = "tools"
    e3_by_kind: bool = True  # only the rules for the kind of agent that the tools show
    recall_threshold: float = 0.25  # similarity under which a pattern is no candidate

    def __post_init__(self) -> None:
        _at_least(self, 1, "e1_steps", "e2_steps")
        _at_least(self, 0, "e1_top_k", "e1_per_run", "e1_lookback_steps", "e2_top_k", "e2_per_type")
        _at_least(self, 0, "e3_max", "e3_max_tokens")
        _in_unit(self, "e1_composite", "e1_gate", "e2_gate", "e2_margin", "recall_threshold")


@frozen
class InjectionSettings:
    """Injections in addition to patterns, the places of all injections, and their lifetime."""

    # `system` = the leading system message; `tail` = a system message after the newest message, or
    # the end of that where the target takes none; `auto` = rules for the whole run in the leading
    # system message of the first request, all else at the tail
    placement: Placement = "auto"
    # `run` = sent again at the same place on every later call; `call` = once
    lifetime: Lifetime = "run"
    monitor_guidance: bool = True  # false = no text of a monitor is given
    quotes: bool = True  # a monitor's text quotes the line of the run that decides
    # composite from which a monitor's text is given though none fired
    monitor_composite: float = 0.35
    monitor_cap: int = 5  # monitor texts in a run
    # steps between two monitor texts, by state; a missing state keeps its default
    cooldown_steps: Mapping[str, int] = field(default_factory=dict)
    skip_directive: bool = True  # every call in SKIP carries the directive to change the approach
    max_field_chars: int = 2_000  # most characters of one text
    max_block_chars: int = 12_000  # most characters of everything that one call injects

    def __post_init__(self) -> None:
        _in_unit(self, "monitor_composite")
        _at_least(self, 0, "monitor_cap")
        _at_least(self, 200, "max_field_chars")
        _at_least(self, 1_000, "max_block_chars")
        for state, steps in self.cooldown_steps.items():
            if state not in COOLDOWN_STEPS:
                known = ", ".join(COOLDOWN_STEPS)
                raise ValueError(f"cooldown_steps: {state!r} is not one of {known}")
            if steps < 0:
                raise ValueError(f"cooldown_steps: {state} is below 0")

    def cooldown(self, state: str) -> int:
        """Steps between two monitor texts in difficulty state `state`; INIT counts as NORMAL."""
        known = {**COOLDOWN_STEPS, **self.cooldown_steps}
        return known.get(state, known["NORMAL"])


@frozen
class Gates:
    """Cosine similarity that a pattern of each searched tier needs for an injection."""

    e1: float  # for patterns of single runs
    e2: float  # for patterns of kinds of failure
    # for e2 where no monitor names a failure type and only the text decides; None = as `e2`
    e2_untyped: float | None = None


def _at_least(settings: object, least: int, *names: str) -> None:
    for name in names:
        if (value := getattr(settings, name)) < least:
            raise ValueError(f"{name}: {value!r} is below {least}")


def _in_unit(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None:
            refuse_outside_unit(name, value)
