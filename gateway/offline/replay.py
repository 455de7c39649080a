"""`gateway replay`: recorded runs through the same core, offline and in parallel."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO, TypeVar

import orjson

from gateway.config import read_file, settings_from_dict
from gateway.errors import ConfigError
from gateway.hooks import given
from gateway.offline import recordings
from gateway.offline.playback import (
    ANSWERED,
    LookUps,
    Replayed,
    ReplayPolicy,
    play,
)
from gateway.text.formatting import progress_bar
from gateway.values import Fields, T, Texts, frozen

CHUNK_RUNS = 16
IN_PROCESS_RUNS = 100  # up to which starting other processes costs more than it saves
_AHEAD = 16  # items for each process that may be done before they are taken

Line = tuple[str, str]  # the place of a recording, and its text
R = TypeVar("R")
Answers = Callable[[ReplayPolicy], AbstractContextManager[LookUps]]


@frozen
class Work:
    """Work to do with each recording; sent to worker processes."""

    policy: ReplayPolicy  # that the runs are replayed under
    lines: bool = False  # asks for JSON lines
    runs: bool = True  # asks for the replays themselves
    # opens what answers look-ups under a policy, in place of ANSWERED
    answers: Answers | None = None

    def __call__(self, lines: Sequence[Line]) -> list[Replayed]:
        """The replays of these recordings, in order; a broken one becomes a problem."""
        opened = self.answers or (lambda _: nullcontext(ANSWERED))
        with opened(self.policy) as look_ups:
            return [self._replay(place, text, look_ups) for place, text in lines]

    def _replay(self, place: str, text: str, look_ups: LookUps) -> Replayed:
        try:
            recording = recordings.parse_recording(text, place)
        except ConfigError as exc:
            return Replayed(place=place, problem=str(exc))
        played = play(recording, self.policy, look_ups)
        line = None
        if self.lines:
            line = orjson.dumps(played, option=orjson.OPT_APPEND_NEWLINE).decode()
        return Replayed(place=place, line=line, played=_slim(played) if self.runs else None)


def _slim(played: Fields) -> Fields:
    """Without scores and evidence, so that thousands of runs fit into memory."""
    kept = ("index", "difficulty", "trouble", "state", "fired", "guidance", "model")
    steps = [{key: step[key] for key in kept if key in step} for step in played["steps"]]
    return {**played, "steps": steps}


def load_policy(path: Path) -> ReplayPolicy:
    """The replay policy in a config file. Raises ConfigError: unreadable file, unknown key or
    refused value."""
    return policy_from_dict(read_file(path), os.environ)


def policy_from_dict(raw: Fields, env: Texts | None = None) -> ReplayPolicy:
    """The policy in the plain values of a config file. Raises ConfigError: unknown key or refused
    value."""
    settings = settings_from_dict(dict(raw), env)
    return ReplayPolicy(rules=settings.rules(), models=settings)


def replay_lines(
    lines: Iterable[Line], work: Work, *, jobs: int | None = None
) -> Iterator[Replayed]:
    """The replays of recordings, in order; `jobs` processes, None = one per core."""
    lines = iter(lines)
    first = list(islice(lines, IN_PROCESS_RUNS))
    jobs = jobs or os.cpu_count() or 1
    rest = chain(first, lines)
    chunks = iter(lambda: list(islice(rest, CHUNK_RUNS)), [])
    if len(first) < IN_PROCESS_RUNS:
        jobs = 1
    yield from chain.from_iterable(in_processes(work, chunks, jobs))


def in_processes(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """The results of `work`, in the order of the items, by so many processes; 1 = by this one."""
    if jobs == 1:
        yield from map(work, items)
        return
    # A forked child would inherit the progress bar's threads.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > jobs * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def run_replay(
    files: Sequence[Path],
    *,
    policy: ReplayPolicy | None = None,
    as_json: bool = False,
    jobs: int | None = None,
    answers: Answers | None = None,
) -> int:
    """Run the command. Returns the exit status: 0 done, 1 some recordings could not be read.
    `answers`: see `Work`. Raises ConfigError: a path cannot be read or written, or holds no
    recording."""
    policy = policy or ReplayPolicy()
    work = Work(policy=policy, lines=as_json, runs=not as_json, answers=answers)
    kept, problems = replay_files(files, work, jobs=jobs, out=sys.stdout, err=sys.stderr)
    if not as_json:
        from gateway.offline.replay_summary import summary

        sys.stdout.write(summary(kept))
    if problems:
        return 1
    return 0


def replay_files(
    files: Sequence[Path], work: Work, *, jobs: int | None, out: TextIO, err: TextIO
) -> tuple[list[Replayed], int]:
    """The replays that a report needs, and the number of recordings that cannot be read and of
    agents' own logs among the files; JSON lines go to `out`, problems and progress to `err`. Raises
    ConfigError: no recording can be read."""
    known = err.isatty() and all(file.is_file() for file in files)
    found = recordings.recording_files(files)
    agents = {
        file: name for agent_of in given("agent_of") for file in found if (name := agent_of(file))
    }
    notes = [
        f"{file}: a session of {name}: gateway history {file}" for file, name in agents.items()
    ]
    if notes and len(notes) == len(found):
        raise ConfigError("; ".join(notes))
    err.writelines(f"gateway: {note}\n" for note in notes)
    found = [file for file in found if file not in agents]
    total = None
    if known:
        total = sum(1 for _ in recordings.read_lines(found))
    lines = ((f"{file.name}:{number}", text) for file, number, text in recordings.read_lines(found))
    kept = []
    seen = problems = len(agents)
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
