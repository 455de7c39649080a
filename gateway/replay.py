"""`gateway replay`: recorded runs through the same core, offline and in parallel.

Prints a summary per source and model, or with `--json` one object per run and line; writes a page
with curves; compares two policies side by side; counts the figures of the evidence table.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from gateway.config import Settings, read_file, settings_from_dict
from gateway.config.schema import build
from gateway.errors import ConfigError
from gateway.playback import Line, Replayed, Work
from gateway.progress import progress_bar
from gateway.recordings import read_lines, recording_files, write_output
from gateway.replay_guide import Price, ReplayPolicy
from gateway.steering.chance import Chance
from gateway.steering.difficulty import ScorerName
from gateway.steering.experiments import ExperimentSettings
from gateway.steering.monitors.base import SuiteName

CHUNK_RUNS = 16
IN_PROCESS_RUNS = 100
"""Up to this many runs, starting other processes costs more than it saves."""
CHUNKS_AHEAD = 4


def load_policy(path: Path) -> ReplayPolicy:
    """The replay policy in a config file, which may also name `prices` (USD per million tokens).

    Raises:
        ConfigError: unreadable file, unknown key or refused value.
    """
    return policy_from_dict(read_file(path), os.environ)


def policy_from_dict(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> ReplayPolicy:
    """The policy in the plain values of a config file.

    Raises:
        ConfigError: unknown key or refused value.
    """
    own = dict(raw)
    prices = own.pop("prices", None) or {}
    if not isinstance(prices, Mapping):
        raise ConfigError("prices: expected a mapping of model names")
    return policy_of(
        settings_from_dict(own, env),
        {name: build(Price, price, f"prices.{name}") for name, price in prices.items()},
    )


def policy_of(settings: Settings, prices: Mapping[str, Price] | None = None) -> ReplayPolicy:
    """What the gateway's settings decide, for a replay.

    An experiment with no arm but `random` is replayed, with each recording's id as its unit.
    """
    return ReplayPolicy(
        policy=settings.policy(),
        routes=settings.routes(),
        routing=settings.routing,
        etraces=settings.etraces,
        injection=settings.injection,
        acting=settings.steering.acting(),
        chance=_chance(settings.experiment),
        prices=prices or {},
    )


def _chance(experiment: ExperimentSettings) -> Chance | None:
    if not experiment.id or [arm for arm, share in experiment.arms.items() if share] != ["random"]:
        return None
    return Chance(
        experiment=experiment.id,
        routing_share=experiment.random_routing_share,
        guidance_share=experiment.random_guidance_share,
    )


def replay_lines(
    lines: Iterable[Line], work: Work, *, jobs: int | None = None
) -> Iterator[Replayed]:
    """The replays of recordings, in order; `jobs` processes, None = one per core."""
    lines = iter(lines)
    first = list(islice(lines, IN_PROCESS_RUNS))
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1 or len(first) < IN_PROCESS_RUNS:
        for line in chain(first, lines):
            yield from work([line])
        return
    # A forked child would inherit the threads of the progress bar.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting: deque[Future[list[Replayed]]] = deque()
        for chunk in _chunks(chain(first, lines)):
            waiting.append(pool.submit(work, chunk))
            if len(waiting) > jobs * CHUNKS_AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _chunks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    while chunk := list(islice(lines, CHUNK_RUNS)):
        yield chunk


def run_replay(
    files: Sequence[Path],
    *,
    policy: ReplayPolicy | None = None,
    other: ReplayPolicy | None = None,
    as_json: bool = False,
    html: Path | None = None,
    evidence: bool = False,
    jobs: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run the command; the exit status: 0 done, 1 some recordings could not be read.

    `other` is the policy to compare `policy` with. `evidence` replays with the calibrated scorer
    and the robust suite, then with the reference's, and prints the figures of both side by side.

    Raises:
        ConfigError: a path that does not exist or cannot be read, files without any recording,
            `evidence` of runs without an outcome, or a page that cannot be written.
    """
    out, err = out or sys.stdout, err or sys.stderr
    policy = policy or ReplayPolicy()
    if evidence:
        policy, other = (
            judged(policy, "calibrated", "robust"),
            judged(policy, "heuristic", "reference"),
        )
    lines = _lines(recording_files(files))
    total = _count(files) if err.isatty() and all(file.is_file() for file in files) else None
    kept: list[Replayed] = []
    problems = seen = 0
    work = Work(policy=policy, other=other, lines=as_json, runs=html is not None or not as_json)
    with progress_bar(err) as bar:
        task = bar.add_task("replaying", total=total)
        for replayed in replay_lines(lines, work, jobs=jobs):
            bar.advance(task)
            seen += 1
            if replayed.problem is not None:
                problems += 1
                err.write(f"gateway: {replayed.problem}\n")
                continue
            if replayed.line is not None:
                out.write(replayed.line)
            if work.runs:
                kept.append(replayed)
    _refuse_nothing(files, seen, kept if evidence else None)
    _report(kept, as_json=as_json, html=html, evidence=evidence, out=out)
    return 1 if problems else 0


def _refuse_nothing(files: Sequence[Path], seen: int, judged: Sequence[Replayed] | None) -> None:
    names = ", ".join(str(file) for file in files)
    if not seen:
        raise ConfigError(f"{names}: no recorded run in it (one JSON object per line is expected)")
    runs = [replayed.played for replayed in judged or ()]
    if judged is not None and all(run is None or run["success"] is None for run in runs):
        raise ConfigError(f"{names}: no run with an outcome (`success`) to count figures on")


def judged(policy: ReplayPolicy, scorer: ScorerName, suite: SuiteName) -> ReplayPolicy:
    """The same policy with another scorer and suite, for recordings that are one task each.

    A labelled recording is one run whatever is said in between: its outcome is that of the whole.
    """
    core = policy.policy
    difficulty = replace(core.difficulty, scorer=scorer)
    monitors = replace(core.monitors, suite=suite)
    core = replace(core, difficulty=difficulty, monitors=monitors, run_boundary="never")
    return replace(policy, policy=core)


def _lines(files: Iterable[Path]) -> Iterator[Line]:
    for file, number, text in read_lines(files):
        yield f"{file.name}:{number}", text


def _count(paths: Sequence[Path]) -> int:
    return sum(1 for _ in read_lines(recording_files(paths)))


def _report(
    kept: Sequence[Replayed], *, as_json: bool, html: Path | None, evidence: bool, out: TextIO
) -> None:
    from gateway.replay_report import page
    from gateway.replay_summary import print_comparison, print_evidence, print_summary

    if html is not None:
        write_output(html, page(kept))
    if as_json:
        return
    console = Console(file=out, width=None if out.isatty() else 120, highlight=False)
    if evidence:
        print_evidence(kept, console)
    elif any(replayed.other is not None for replayed in kept):
        print_summary(kept, console)
        print_comparison(kept, console)
    else:
        print_summary(kept, console)
    if html is not None:
        console.print(f"page: {html}")
