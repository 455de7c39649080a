"""`gateway replay`: recorded runs through the same core, offline and in parallel; two policies
compared, or routing policies judged."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import orjson
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from gateway.config import Settings, read_file, settings_from_dict
from gateway.config.schema import build
from gateway.errors import ConfigError
from gateway.offline.playback import Line, Price, Replayed, ReplayPolicy, Work
from gateway.offline.recordings import read_lines, recording_files, write_output
from gateway.steering.experiments import RandomArm
from gateway.steering.monitors import SuiteName
from gateway.steering.scoring.scorer import ScorerName
from gateway.text.formatting import progress_bar

CHUNK_RUNS = 16
IN_PROCESS_RUNS = 100  # up to which starting other processes costs more than it saves
CHUNKS_AHEAD = 4


def load_policy(path: Path) -> ReplayPolicy:
    """The replay policy in a config file, which may also name `prices` (USD per million tokens).
    Raises ConfigError: unreadable file, unknown key or refused value."""
    return policy_from_dict(read_file(path), os.environ)


def policy_from_dict(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> ReplayPolicy:
    """The policy in the plain values of a config file. Raises ConfigError: unknown key or refused
    value."""
    own = dict(raw)
    prices = own.pop("prices", None) or {}
    if not isinstance(prices, Mapping):
        raise ConfigError("prices: expected a mapping of model names")
    settings = settings_from_dict(own, env)
    found = {name: build(Price, price, f"prices.{name}") for name, price in prices.items()}
    return policy_of(settings, found)


def policy_of(settings: Settings, prices: Mapping[str, Price] | None = None) -> ReplayPolicy:
    """The policy of the gateway's settings, for a replay. An experiment with no arm but `random` is
    replayed, with each recording's id as its unit."""
    experiment, arm = settings.experiment, None
    if experiment.id and [name for name, share in experiment.arms.items() if share] == ["random"]:
        arm = RandomArm(
            experiment=experiment.id,
            routing_share=experiment.random_routing_share,
            guidance_share=experiment.random_guidance_share,
        )
    return ReplayPolicy(rules=settings.rules(), arm=arm, prices=prices or {}, models=settings)


def replay_lines(
    lines: Iterable[Line], work: Work, *, jobs: int | None = None
) -> Iterator[Replayed]:
    """The replays of recordings, in order; `jobs` processes, None = one per core."""
    lines = iter(lines)
    first = list(islice(lines, IN_PROCESS_RUNS))
    jobs = jobs or os.cpu_count() or 1
    rest = chain(first, lines)
    chunks = iter(lambda: list(islice(rest, CHUNK_RUNS)), [])
    if jobs == 1 or len(first) < IN_PROCESS_RUNS:
        for chunk in chunks:
            yield from work(chunk)
        return
    # A forked child would inherit the progress bar's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting: deque[Future[list[Replayed]]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(work, chunk))
            if len(waiting) > jobs * CHUNKS_AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def run_replay(
    files: Sequence[Path],
    *,
    policy: ReplayPolicy | None = None,
    other: ReplayPolicy | None = None,
    as_json: bool = False,
    html: Path | None = None,
    jobs: int | None = None,
    patterns: str = "",
    routing: Sequence[str] = (),
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run the command. Returns the exit status: 0 done, 1 some recordings could not be read.

    `other`: the policy to compare with. `patterns`: see `ReplayPolicy`. `routing`: routing policies
    to judge by the recorded outcomes instead. Raises ConfigError: a path cannot be read or written,
    or holds no recording.
    """
    out, err = out or sys.stdout, err or sys.stderr
    policy = dataclasses.replace(policy or ReplayPolicy(), patterns=patterns)
    other = other and dataclasses.replace(other, patterns=patterns)
    if routing:
        policy = with_scorer(policy, "calibrated", "robust")
    lines_only = as_json and html is None and not routing
    work = Work(policy=policy, other=other, lines=as_json and not routing, runs=not lines_only)
    kept, problems = replay_files(files, work, jobs=jobs, out=out, err=err)
    console = report_console(out)
    if routing:
        from gateway.offline.routing_policies import compare_policies, policy_table

        played = [replayed.played for replayed in kept if replayed.played is not None]
        regret = policy.rules.routing.regret
        results = compare_policies(played, routing, policy.prices, regret=regret)
        if as_json:
            out.write(orjson.dumps(results, option=orjson.OPT_APPEND_NEWLINE).decode())
        else:
            console.print(policy_table(results))
        return 1 if problems else 0
    from gateway.offline.replay_summary import page, print_comparison, print_summary

    if html is not None:
        write_output(html, page(kept, policy.rules.policy.fsm))
    if not as_json:
        print_summary(kept, console)
        if any(replayed.other is not None for replayed in kept):
            print_comparison(kept, console)
        if html is not None:
            console.print(f"page: {html}")
    return 1 if problems else 0


def replay_files(
    files: Sequence[Path], work: Work, *, jobs: int | None, out: TextIO, err: TextIO
) -> tuple[list[Replayed], int]:
    """The replays that a report needs, and the number of recordings that cannot be read; JSON lines
    go to `out`, problems and progress to `err`. Raises ConfigError: no recording can be read."""
    known = err.isatty() and all(file.is_file() for file in files)
    total = sum(1 for _ in read_lines(recording_files(files))) if known else None
    found = read_lines(recording_files(files))
    lines = ((f"{file.name}:{number}", text) for file, number, text in found)
    kept: list[Replayed] = []
    seen = problems = 0
    with progress_bar(err) as bar:
        replays = replay_lines(lines, work, jobs=jobs)
        for replayed in bar.track(replays, total=total, description="replaying"):
            seen += 1
            if replayed.problem is not None:
                problems += 1
                err.write(f"gateway: {replayed.problem}\n")
                continue
            out.write(replayed.line or "")
            if work.runs:
                kept.append(replayed)
    if not seen:
        names = ", ".join(str(file) for file in files)
        raise ConfigError(f"{names}: no recorded run in it (one JSON object per line is expected)")
    return kept, problems


def with_scorer(policy: ReplayPolicy, scorer: ScorerName, suite: SuiteName) -> ReplayPolicy:
    """The same policy with another scorer and suite, for recordings that are one task each. A
    labelled recording counts as one run, because its outcome is that of the whole recording."""
    core = policy.rules.policy
    difficulty = dataclasses.replace(core.difficulty, scorer=scorer)
    monitors = dataclasses.replace(core.monitors, suite=suite)
    core = dataclasses.replace(core, difficulty=difficulty, monitors=monitors, run_boundary="never")
    return dataclasses.replace(policy, rules=replace(policy.rules, policy=core))


def report_console(out: TextIO) -> Console:
    """A console for the tables of a report, 120 columns wide if `out` is no terminal."""
    return Console(file=out, width=None if out.isatty() else 120, highlight=False)


def report_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """A table with its title above, and columns on the left and on the right."""
    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table
