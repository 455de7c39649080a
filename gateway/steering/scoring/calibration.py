"""Weights of the difficulty, learned from recorded runs, and their origin."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from operator import mul
from typing import Any

from msgspec import Struct

FORMAT = 2
SHIPPED = "weights.json"

WINDOW_STEPS = 8  # Newest steps that a score of difficulty looks at. Source: design section 7.
NEWEST_STEPS = 3  # newest steps that count once more within the window
SIGNALS = (  # signals of a step about the stretch it is in; `calibrated.signals_of` defines each
    *("trouble", "repeats", "fails", "empty"),
    *("looks", "calls", "passes"),
)
STALE = "stale.newest"  # of the newest step alone: over more steps it follows the step number
SPANS = ("newest", "recent", "window")
# The scorer's inputs in the order of their weights: each signal over three spans of steps.
FEATURES = (*[f"{signal}.{span}" for span in SPANS for signal in SIGNALS], STALE)
_FORMER = {f"{signal}.{span}" for span in SPANS for signal in ("stale", "retells")} - {STALE}
CONTEXT = ("looks", "calls", "passes")  # no trouble by themselves: weights of either sign
SIGNS: Mapping[str, int] = {
    name: 0 if name.partition(".")[0] in CONTEXT else 1 for name in FEATURES
}  # the direction each feature must push: evidence of trouble never lowers a score; 0 = either


class Calibration(Struct, frozen=True, kw_only=True):
    """A fitted scorer: `weights` per unit of each feature, `bias` the log odds at zero;
    `provenance`: the origin of the numbers. Raises: ValueError for a missing weight, one of the
    wrong sign, or a number that is not finite."""

    bias: float
    weights: tuple[float, ...]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES):
            raise ValueError(f"weights: expected {len(FEATURES)}, got {len(self.weights)}")
        for name, weight in zip(FEATURES, self.weights, strict=True):
            if not math.isfinite(weight) or weight * SIGNS[name] < 0:
                raise ValueError(f"weights.{name}: {weight!r} pushes the wrong way")
        if not math.isfinite(self.bias):
            raise ValueError(f"bias: expected a finite number, got {self.bias!r}")

    def log_odds(self, features: tuple[float, ...]) -> float:
        """Log odds of the difficulty of a stretch with these FEATURES."""
        return self.bias + float(sum(map(mul, self.weights, features)))


def calibration_from_json(text: str | bytes) -> Calibration:
    """The calibration in a weights file. Raises: ValueError for another format, a missing key or a
    value out of range."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"weights file: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") is True or data.get("format") != FORMAT:
        raise ValueError(f"format: expected {FORMAT}, as in the file that ships")
    if unknown := _member(data, "weights").keys() - {*FEATURES, *_FORMER}:
        raise ValueError(f"weights.{min(unknown)}: unknown, expected {', '.join(FEATURES)}")
    return Calibration(
        bias=_number(data, "bias"),
        weights=tuple([_number(data, "weights", name) for name in FEATURES]),
        provenance=_member(data, "provenance"),
    )


def _member(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key}: {_expected('an object', value)}")
    return value


def _number(data: Mapping[str, Any], *path: str) -> float:
    """A finite number of the file, or of an object in it."""
    value = (data if len(path) == 1 else _member(data, path[0])).get(path[-1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{'.'.join(path)}: {_expected('a finite number', value)}")
    return float(value)


def _expected(what: str, value: object) -> str:
    return f"expected {what}, got {value!r:.60}" if value is not None else f"{what} is missing"


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package, read once."""
    source = resources.files("gateway.steering.scoring").joinpath(SHIPPED)
    return calibration_from_json(source.read_text(encoding="utf-8"))
