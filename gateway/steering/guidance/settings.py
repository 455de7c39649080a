"""Settings of guidance: what is looked up, how often anything is injected, and where it goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

STATES = ("FAST", "NORMAL", "SLOW", "SKIP")

# Steps between two monitor texts, by difficulty state. Source: reference section 5.
COOLDOWN_STEPS: Mapping[str, int] = {"FAST": 5, "NORMAL": 3, "SLOW": 2, "SKIP": 2}

E2When = Literal["always", "at_risk"]
E3When = Literal["tools", "always"]
Placement = Literal["auto", "system", "tail"]
Lifetime = Literal["run", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EtraceSettings:
    """Look-ups per tier.

    `*_steps` = newest steps that make the query; `*_top_k`, `e3_max` = patterns wanted;
    `e1_per_run` = injections of tier e1 in a run, `e2_per_type` = of tier e2 for each failure type
    (steps without one count as a type); `e1_composite` = composite above which the e1 gate opens,
    `e1_lookback_steps` = how long a fired monitor keeps it open; `recall_threshold` = similarity
    under which a pattern is no candidate; `e1_gate`, `e2_gate` = similarity needed for an
    injection, None = the value calibrated for the embedder in use; `e2_margin` = how far behind the
    best pattern a further one may be; `e2_by_cause` = patterns for the cause of the trouble first;
    `e3_max_tokens` = tokens of all universal rules of a run, 0 = any number; `e3_when` = on calls
    that offer tools, or on each first call; `e3_by_kind` = only the rules for the kind of agent
    that the tools show.
    Source: reference section 6.1."""

    enabled: bool = True
    e1_top_k: int = 1
    e1_per_run: int = 1
    e1_steps: int = 3
    e1_composite: float = 0.15
    e1_lookback_steps: int = 2
    e1_gate: float | None = None
    e2_top_k: int = 2
    e2_per_type: int = 1
    e2_steps: int = 5
    e2_when: E2When = "at_risk"
    e2_gate: float | None = None
    e2_margin: float = 0.02
    e2_by_cause: bool = True
    e3_max: int = 5
    e3_max_tokens: int = 120
    e3_when: E3When = "tools"
    e3_by_kind: bool = True
    recall_threshold: float = 0.25

    def __post_init__(self) -> None:
        _at_least(self, 1, "e1_steps", "e2_steps")
        _at_least(self, 0, "e1_top_k", "e1_per_run", "e1_lookback_steps", "e2_top_k", "e2_per_type")
        _at_least(self, 0, "e3_max", "e3_max_tokens")
        _in_unit(self, "e1_composite", "e1_gate", "e2_gate", "e2_margin", "recall_threshold")
        _one_of(self, "e2_when", ("always", "at_risk"))
        _one_of(self, "e3_when", ("tools", "always"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionSettings:
    """Injections in addition to patterns, the places of all injections, and their lifetime.

    `placement`: `system` = the leading system message; `tail` = a system message after the newest
    message, or the end of that where the target takes none; `auto` = rules for all of a run in the
    leading system message of a conversation's first request, all else at the tail. `lifetime`:
    `run` = sent again at the same place on every later call of the run; `call` = once. `quotes`:
    monitor texts quote the line of the run that decides.
    `monitor_composite` = composite from which a monitor text is given though none fired;
    `monitor_cap` = monitor texts in a run; `cooldown_steps` = steps between two of them by state,
    missing states keep their default. `max_field_chars`, `max_block_chars`: of one text, and of
    everything injected by one call."""

    placement: Placement = "auto"
    lifetime: Lifetime = "run"
    monitor_guidance: bool = True
    quotes: bool = True
    monitor_composite: float = 0.35
    monitor_cap: int = 5
    cooldown_steps: Mapping[str, int] = field(default_factory=dict)
    skip_directive: bool = True
    max_field_chars: int = 2_000
    max_block_chars: int = 12_000

    def __post_init__(self) -> None:
        _one_of(self, "placement", ("auto", "system", "tail"))
        _one_of(self, "lifetime", ("run", "call"))
        _in_unit(self, "monitor_composite")
        _at_least(self, 0, "monitor_cap")
        _at_least(self, 200, "max_field_chars")
        _at_least(self, 1_000, "max_block_chars")
        for state, steps in self.cooldown_steps.items():
            if state not in STATES:
                raise ValueError(f"cooldown_steps: {state!r} is not one of {', '.join(STATES)}")
            if steps < 0:
                raise ValueError(f"cooldown_steps: {state} is below 0")

    def cooldown(self, state: str) -> int:
        """Steps between two monitor texts in difficulty state `state`; INIT counts as NORMAL."""
        known = {**COOLDOWN_STEPS, **self.cooldown_steps}
        return known.get(state, known["NORMAL"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Similarity that a pattern of each searched tier needs for an injection; `e2_untyped`: where
    no monitor names a failure type and only the text decides, None = as `e2`."""

    e1: float
    e2: float
    e2_untyped: float | None = None


def _at_least(settings: object, least: int, *names: str) -> None:
    for name in names:
        if (value := getattr(settings, name)) < least:
            raise ValueError(f"{name}: {value!r} is below {least}")


def _in_unit(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise ValueError(f"{name}: {value!r} is not in [0, 1]")


def _one_of(settings: object, name: str, allowed: tuple[str, ...]) -> None:
    if (value := getattr(settings, name)) not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
