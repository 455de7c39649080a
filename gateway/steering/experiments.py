"""Experiments: which arm a unit is in, the same on every replica and for ever."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

ARMS = ("on", "shadow", "off")

_DRAW_BYTES = 8
_DRAW_RANGE = 256.0**_DRAW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """One running experiment; an empty `id` means none.

    `arms` maps on, shadow and off to their share of the units; shares are relative to their sum.
    """

    id: str = ""
    arms: Mapping[str, float] = field(default_factory=lambda: {"on": 0.5, "off": 0.5})

    def __post_init__(self) -> None:
        for arm, share in self.arms.items():
            if arm not in ARMS:
                raise ValueError(f"arms.{arm}: not one of {', '.join(ARMS)}")
            if not 0 <= share < math.inf:
                raise ValueError(f"arms.{arm}: must be 0 or more, and finite, got {share:g}")
        if not sum(self.arms.values()) > 0:
            raise ValueError("arms: the shares must add up to more than 0")


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
    """The arm of `unit`: on, shadow or off, in the proportions of the settings."""
    total = sum(settings.arms.values())
    point = draw(settings.id, unit) * total
    passed = 0.0
    arms = [arm for arm in ARMS if settings.arms.get(arm, 0) > 0]
    for arm in arms[:-1]:
        passed += settings.arms[arm]
        if point < passed:
            return arm
    return arms[-1]
