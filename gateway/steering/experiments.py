"""Experiments: which arm a unit is in, the same on every replica and for ever."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MODES = ("on", "shadow", "off")
"""What may be done with a request: steered, decided about only, left alone."""

ARMS = ("on", "random", "shadow", "off")
"""What a unit may be assigned to: a mode, or `random` = `on` with chance deciding when to act."""

RANDOM_ROUTING_SHARE = 0.12
"""Share of scored steps on which `on` holds a hard state's model. Source: docs/evidence.md."""

RANDOM_GUIDANCE_SHARE = 0.011
"""Share at which chance gives as many texts as `on` does. Source: docs/evidence.md."""

_DRAW_BYTES = 8
_DRAW_RANGE = 256.0**_DRAW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """One running experiment; an empty `id` means none.

    `arms` maps on, random, shadow and off to their share of the units; shares are relative to their
    sum. `random_routing_share`, `random_guidance_share`: on what share of the scored steps, in
    [0, 1], the arm `random` asks a hard state's model, and gives guidance.

    Raises:
        ValueError: unknown arm, shares that are none or out of range.
    """

    id: str = ""
    arms: Mapping[str, float] = field(default_factory=lambda: {"on": 0.5, "off": 0.5})
    random_routing_share: float = RANDOM_ROUTING_SHARE
    random_guidance_share: float = RANDOM_GUIDANCE_SHARE

    def __post_init__(self) -> None:
        for arm, share in self.arms.items():
            if arm not in ARMS:
                raise ValueError(f"arms.{arm}: not one of {', '.join(ARMS)}")
            if not 0 <= share < math.inf:
                raise ValueError(f"arms.{arm}: must be 0 or more, and finite, got {share:g}")
        if not sum(self.arms.values()) > 0:
            raise ValueError("arms: the shares must add up to more than 0")
        for name in ("random_routing_share", "random_guidance_share"):
            value = getattr(self, name)
            if isinstance(value, bool) or not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}: expected a number in [0, 1], got {value!r}")


def mode_of(arm: str) -> str:
    """The mode of an arm's requests: `random` changes them as `on` does."""
    return "on" if arm == "random" else arm


def draw(experiment: str, unit: str) -> float:
    """A number in [0, 1), fixed for the pair, as good as uniform over units.

    First 8 bytes of a SHA-256 digest, big-endian, over 2^64. Source: reference section 14, except
    that each part is preceded by its length: joined by a colon, ("a:b", "c") and ("a", "b:c")
    were one.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in (experiment, unit)]
    joined = b"".join(str(len(part)).encode() + b":" + part for part in parts)
    first = hashlib.sha256(joined).digest()[:_DRAW_BYTES]
    return int.from_bytes(first, "big") / _DRAW_RANGE


def assign(settings: ExperimentSettings, unit: str) -> str:
    """The arm of `unit`: one of ARMS, in the proportions of the settings."""
    shares = [(arm, settings.arms.get(arm, 0.0)) for arm in ARMS]
    return pick(shares, draw(settings.id, unit))


def pick(shares: Sequence[tuple[str, float]], point: float) -> str:
    """The name on whose part `point`, in [0, 1), falls when the parts are laid out in order.

    Raises:
        IndexError: no share is above 0.
    """
    given = [(name, share) for name, share in shares if share > 0]
    point *= sum(share for _, share in given)
    passed = 0.0
    for name, share in given[:-1]:
        passed += share
        if point < passed:
            return name
    return given[-1][0]
