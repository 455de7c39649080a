"""What calibration learned from recorded runs: weights, budgets, precision, and where from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

FORMAT = 1
SHIPPED = "weights.json"

FEATURES = ("effort", "progress", "hedging", "similar", "repeats", "failures", "echo")
"""The scorer's inputs in the order of their weights; `calibrated.RunFeatures` says what each is."""
SIGNS: Mapping[str, int] = {name: -1 if name == "progress" else 1 for name in FEATURES}
"""The direction each feature must push: evidence of trouble never lowers a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted scorer.

    `weights` are per unit of each feature, `bias` the log odds at zero; `budget_works` and
    `budget_talks` the calls within which nearly all successful runs ended, for agents that change
    files or run programs and for the others; `precision` the share of failed runs among those in
    which a signal ever showed, per signal; `provenance` how the numbers came about.

    Raises:
        ValueError: a feature without weight or with one of the wrong sign, a number out of range.
    """

    bias: float
    weights: tuple[float, ...]
    budget_works: int
    budget_talks: int
    precision: Mapping[str, float]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES):
            raise ValueError(f"weights: expected {len(FEATURES)}, got {len(self.weights)}")
        for name, weight in zip(FEATURES, self.weights, strict=True):
            if not math.isfinite(weight) or weight * SIGNS[name] < 0:
                raise ValueError(f"weights.{name}: {weight!r} pushes the wrong way")
        if not math.isfinite(self.bias):
            raise ValueError(f"bias: expected a finite number, got {self.bias!r}")
        for key in ("budget_works", "budget_talks"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: expected at least 1, got {getattr(self, key)!r}")
        for name, value in self.precision.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"precision.{name}: expected a number in [0, 1], got {value!r}")

    def score(self, features: tuple[float, ...]) -> float:
        """Difficulty in (0, 1) of a run with these features, in the order of FEATURES."""
        total = self.bias
        for weight, value in zip(self.weights, features, strict=True):
            total += weight * value
        return 1.0 / (1.0 + math.exp(-min(max(total, -30.0), 30.0)))

    def call_budget(self, *, works: bool) -> int:
        """Calls that nearly all successful runs of the kind stayed within."""
        return self.budget_works if works else self.budget_talks


def calibration_from_json(text: str | bytes) -> Calibration:
    """The calibration in a weights file.

    Raises:
        ValueError: not JSON, another format, a missing key or a value out of range.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"weights file: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"format: expected {FORMAT}, as written by `gateway calibrate`")
    try:
        weights = data["weights"]
        return Calibration(
            bias=float(data["bias"]),
            weights=tuple([float(weights[name]) for name in FEATURES]),
            budget_works=int(data["budgets"]["works"]),
            budget_talks=int(data["budgets"]["talks"]),
            precision={str(k): float(v) for k, v in data["precision"].items()},
            provenance=dict(data["provenance"]),
        )
    except KeyError as error:
        raise ValueError(f"weights file: {error.args[0]!r} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"weights file: {error}") from error


def calibration_to_json(calibration: Calibration) -> str:
    """The text of a weights file; equal calibrations give equal bytes."""
    data = {
        "format": FORMAT,
        "bias": calibration.bias,
        "weights": dict(zip(FEATURES, calibration.weights, strict=True)),
        "budgets": {"works": calibration.budget_works, "talks": calibration.budget_talks},
        "precision": dict(calibration.precision),
        "provenance": dict(calibration.provenance),
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package, read once."""
    source = resources.files("gateway.steering").joinpath(SHIPPED)
    return calibration_from_json(source.read_text(encoding="utf-8"))
