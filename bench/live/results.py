"""The trials in the folder: the harness's verdict and the gateway's runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.live.plan import Plan, Trial
from bench.live.running import solved


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The use that the gateway recorded while the agent worked. None: not known."""

    input_tokens: int | None
    output_tokens: int | None
    usd: float | None
    guidance: int
    switched: int
    stopped: int

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> Spent:
        """The runs of one trial put together; side requests of the agent are runs, too."""
        totals = [run["run"]["totals"] for run in runs]
        known = [t for t in totals if not t["unpriced_calls"] and t["cost_usd"] is not None]
        calls = [step["call"] for run in runs for step in run["steps"] if step["call"]]
        return cls(
            input_tokens=sum(t["input_tokens"] for t in totals) if totals else None,
            output_tokens=sum(t["output_tokens"] for t in totals) if totals else None,
            usd=sum(t["cost_usd"] for t in known) if known and len(known) == len(totals) else None,
            guidance=sum(len(run["guidance"]) for run in runs),
            switched=sum(call["model_asked"] != call["model_requested"] for call in calls),
            stopped=sum(run["run"]["stopped"] is not None for run in runs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A trial that ended. `solved` None: the harness gave no reward, because of `error`."""

    trial: Trial
    solved: bool | None
    error: str | None
    seconds: float
    spent: Spent
    agent_version: str

    @property
    def success(self) -> float:
        """1 if solved; a trial without a reward counts as not solved."""
        return float(self.solved is True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that the report reads. `calls`: the calls of `run` with their versions."""

    plan: Plan
    done: tuple[Done, ...]
    calls: tuple[dict[str, Any], ...]
    prices: dict[str, Any]

    def of(self, arm: str, task: str | None = None) -> list[Done]:
        """The trials of an arm, or of an arm and a task."""
        return [d for d in self.done if d.trial.arm == arm and task in (None, d.trial.task)]

    @property
    def tasks(self) -> list[str]:
        """All tasks of the plan."""
        return sorted({trial.task for trial in self.plan.trials})

    @property
    def few(self) -> list[tuple[str, str, int]]:
        """(task, arm, trials) wherever there are fewer than the plan says."""
        cells = ((task, arm) for task in self.tasks for arm in self.plan.arms)
        counted = ((task, arm, len(self.of(arm, task))) for task, arm in cells)
        return [cell for cell in counted if cell[2] < self.plan.k]


def read(folder: Path) -> Results:
    """Raises: Refused when the folder holds no plan."""
    plan = Plan.read(folder)
    runs = {arm: _runs(folder / "arms" / arm) for arm in plan.arms}
    done = (_done(folder, trial, runs[trial.arm]) for trial in plan.trials)
    calls = (folder / "calls.jsonl").read_text().splitlines()
    return Results(
        plan=plan,
        done=tuple(filter(None, done)),
        calls=tuple(map(json.loads, calls)),
        prices=json.loads((folder / "prices.json").read_text()),
    )


def _runs(home: Path) -> list[dict[str, Any]]:
    """The newest export of an arm; each has all runs of its store."""
    files = sorted(home.glob("runs-*.jsonl"), key=lambda p: int(p.stem.partition("-")[2]))
    return [json.loads(line) for line in files[-1].read_text().splitlines()] if files else []


def _done(folder: Path, trial: Trial, runs: Iterable[Mapping[str, Any]]) -> Done | None:
    path = folder / "records" / f"{trial.id}.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    result = json.loads(next((folder / "trials" / trial.id).glob("*/result.json")).read_text())
    rewards = (result.get("verifier_result") or {}).get("rewards")
    # One trial at a time: a run that began within it is its own.
    own = [r for r in runs if record["started"] <= r["run"]["started_at"] <= record["ended"]]
    return Done(
        trial=trial,
        solved=solved(rewards) if rewards else None,
        error=(result.get("exception_info") or {}).get("exception_type"),
        seconds=_worked(result) or record["ended"] - record["started"],
        spent=Spent.of(own),
        agent_version=result["agent_info"]["version"],
    )


def _worked(result: Mapping[str, Any]) -> float | None:
    """Seconds that the agent worked, without the making of its container and the check."""
    phase = result.get("agent_execution") or {}
    times = [phase.get(name) for name in ("started_at", "finished_at")]
    if None in times:
        return None
    began, ended = (datetime.fromisoformat(str(at)) for at in times)
    return (ended - began).total_seconds()
