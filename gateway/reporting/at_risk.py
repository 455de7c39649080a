"""The curve of handing over or ending runs at risk: what each level would have come to."""

from collections.abc import Mapping

from msgspec import Struct

from gateway.stores.totals import ALL_RUNS, HAND_OVER, RISK_LEVELS


class RiskRow(Struct, frozen=True, kw_only=True):
    """One level: `runs` whose risk lasted at it for three steps, of which `failed`. `reached`:
    their share of all runs; `precision`: the share of them that failed; `solved_lost`: of all
    solved runs, the share among them; `steps_ahead`, `tokens_ahead`: of those of all runs, the
    share that was still ahead of them. None: of nothing."""

    level: float
    runs: int
    failed: int
    reached: float | None
    precision: float | None
    solved_lost: float | None
    steps_ahead: float | None
    tokens_ahead: float | None


class RiskCurve(Struct, frozen=True, kw_only=True):
    """All levels, over `runs` with a known outcome, of which `failed`. `left_out`: runs that were
    asked to hand over, which changed how they ended."""

    runs: int
    failed: int
    left_out: int
    rows: tuple[RiskRow, ...]

    @property
    def note(self) -> str:
        """The runs that the figures are of, and what they leave out."""
        left_out = f"; neither are {self.left_out:,} that were handed over" if self.left_out else ""
        return (
            f"Of {self.runs:,} runs with an outcome, {self.failed:,} failed. Runs without an "
            f"outcome are not counted{left_out}. Risk: the evidence of a run alone, at the level "
            "for three steps. Runs that only talk, and those that a person leads, reach none."
        )


def risk_curve(sums: Mapping[str, Mapping[str, int]]) -> RiskCurve:
    """The curve from sums as `count_at_risk` makes them."""
    none = dict.fromkeys(("runs", "failed", "steps", "tokens"), 0)
    whole = sums.get(ALL_RUNS, none)
    rows = []
    for level in RISK_LEVELS:
        own = sums.get(level, none)
        solved = own["runs"] - own["failed"]
        rows.append(
            RiskRow(
                level=float(level),
                runs=own["runs"],
                failed=own["failed"],
                reached=_share(own["runs"], whole["runs"]),
                precision=_share(own["failed"], own["runs"]),
                solved_lost=_share(solved, whole["runs"] - whole["failed"]),
                steps_ahead=_share(own["steps"], whole["steps"]),
                tokens_ahead=_share(own["tokens"], whole["tokens"]),
            )
        )
    left_out = sums.get(HAND_OVER, none)["runs"]
    return RiskCurve(
        runs=whole["runs"], failed=whole["failed"], left_out=left_out, rows=tuple(rows)
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
