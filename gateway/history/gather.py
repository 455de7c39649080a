"""Reading many session logs: in parallel, one file at a time, and only the readings are kept."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta
from typing import TextIO

from msgspec import Struct

from gateway.errors import ConfigError
from gateway.history.find import Found
from gateway.history.reading import SessionReading, read_session
from gateway.history.session import Session
from gateway.steering.policy import Policy
from gateway.text.formatting import progress_bar

IN_PROCESS_BYTES = 40_000_000
"""Size of all files up to which other processes cost more than they save: 1.2 s of work, against
0.9 s to start two."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The sessions that are asked for: last used at `since` or later (seconds of the epoch), of a
    project whose folder contains `project`, of this agent. Empty values take all."""

    since: float | None = None
    project: str = ""
    agent: str = ""

    def takes(self, session: Session | SessionReading) -> bool:
        """True for a session that is asked for; one without a time is taken, and none in which
        nothing happened."""
        if not (session.calls or session.human):
            return False
        late = self.since is None or session.ended is None or session.ended >= self.since
        fits = self.project.lower() in session.project.lower()
        return late and fits and self.agent in ("", session.agent)


def since(text: str, now: datetime) -> float:
    """The moment in `--since`: an ISO date, or a number of days or weeks before now (`7d`, `4w`).
    Raises ConfigError: neither."""
    unit = {"d": 1, "w": 7}.get(text[-1:])
    if unit and text[:-1].isdigit():
        return (now - timedelta(days=int(text[:-1]) * unit)).timestamp()
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        fault = f"--since: {text!r} is neither a date such as 2026-01-31 nor days or weeks (7d, 4w)"
        raise ConfigError(fault) from None
    return (day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp()


class FileReadings(Struct, frozen=True, kw_only=True):
    """The sessions of one file, or why it has none."""

    path: str
    sessions: tuple[SessionReading, ...] = ()
    problem: str = ""


def read_file(found: Found, policy: Policy) -> FileReadings:
    """Read one file. Never raises: a reader that fails is a problem of its file."""
    path = str(found.path)
    if found.format is None:
        return FileReadings(path=path, problem=found.problem)
    log = found.open()
    try:
        sessions = tuple(read_session(each, policy, path) for each in found.sessions(log))
    except ConfigError as exc:
        return FileReadings(path=path, problem=str(exc))
    except Exception as exc:
        # An agent's next version can break any expectation; the other files are still read.
        fault = f"{path}:{log.seen}: the {found.format.name} reader failed: {exc!r}"
        return FileReadings(path=path, problem=fault)
    if not sessions and log.unread:
        line, reason = log.unread[0]
        return FileReadings(path=path, problem=f"{path}:{line}: {reason}; no session in this file")
    return FileReadings(path=path, sessions=sessions)


def read_all(
    found: Sequence[Found], policy: Policy, *, err: TextIO, jobs: int | None = None
) -> Iterator[FileReadings]:
    """Read the files; `jobs` processes, None = one per core. The order is that of completion."""
    jobs = jobs or os.cpu_count() or 1
    size = sum(each.size for each in found)
    with progress_bar(err) as bar:
        readings: Iterable[FileReadings]
        if jobs == 1 or size < IN_PROCESS_BYTES:
            readings = (read_file(each, policy) for each in found)
            yield from bar.track(readings, total=len(found), description="reading sessions")
            return
        # A forked child would inherit the progress bar's threads.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            futures = [pool.submit(read_file, each, policy) for each in found]
            done = (future.result() for future in as_completed(futures))
            yield from bar.track(done, total=len(found), description="reading sessions")
