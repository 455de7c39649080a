"""`gateway history --keep`: sessions of agents as past runs in the store of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO

from gateway.backends import Stores, open_stores
from gateway.commands.learn import open_learner
from gateway.commands.store import found_storage, reported
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.history.find import Found
from gateway.history.keep import Keeper, Kept
from gateway.history.session import Session
from gateway.process.running import state_database
from gateway.stores.protocols import StoreError
from gateway.text.formatting import counted, progress_bar
from gateway.text.sanitize import visible

_MOST_REASONS = 20  # files that are named with what is wrong; the rest is counted


Takes = Callable[[Session], bool]


def run_keep(
    found: Sequence[Found],
    settings: Settings,
    out: TextIO,
    err: TextIO,
    takes: Takes = lambda session: True,
) -> int:
    """Keep the sessions of these files that `takes` chooses, and learn from them; the exit status.

    The database is the one that other commands read; if there is none, that of `gateway wrap` is
    made. Raises ConfigError: the store cannot be opened or written."""
    with reported():
        return asyncio.run(_run(found, _with_database(settings), out, err, takes))


def _with_database(settings: Settings) -> Settings:
    try:
        return replace(settings, storage=found_storage(settings.storage))
    except ConfigError:
        path = state_database()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return replace(settings, storage=replace(settings.storage, path=str(path)))


async def _run(
    found: Sequence[Found], settings: Settings, out: TextIO, err: TextIO, takes: Takes
) -> int:
    stores = await open_stores(settings.storage)
    try:
        problems: list[str] = []
        keeper = Keeper(stores, settings)
        with progress_bar(err) as bar:
            task = bar.add_task("keeping", total=len(found))
            # The oldest first: a session that was resumed has copies of the answers before it.
            for each in sorted(found, key=_changed_at):
                await _keep_file(keeper, each, takes, problems)
                bar.advance(task)
            runs = keeper.counts.runs
            task = bar.add_task("learning", total=len(runs))
            await _learn(runs, stores, settings, lambda: bar.advance(task))
    finally:
        await stores.close()
    for problem in problems[:_MOST_REASONS]:
        err.write(f"gateway: not kept: {visible(problem)}\n")
    if more := len(problems[_MOST_REASONS:]):
        err.write(f"gateway: not kept: {counted(more, 'more session')}\n")
    out.write(_line(keeper.counts) + "\n")
    return 1 if problems and not keeper.counts.kept + keeper.counts.known else 0


def _changed_at(found: Found) -> float:
    try:
        return found.path.stat().st_mtime
    except OSError:
        return 0.0


async def _keep_file(keeper: Keeper, found: Found, takes: Takes, problems: list[str]) -> None:
    """Keep the sessions of a file; what is wrong with one does not stop the others."""
    if found.format is None:
        problems.append(found.problem)
        return
    try:
        for session in filter(takes, found.sessions(found.open())):
            try:
                await keeper.keep(session)
            except StoreError:
                raise
            except Exception as exc:
                problems.append(f"{found.path}: session {session.id}: {exc}")
    except StoreError:
        raise
    except Exception as exc:
        problems.append(f"{found.path}: {exc}")


async def _learn(
    runs: Sequence[str], stores: Stores, settings: Settings, done: Callable[[], None]
) -> None:
    """Derive the outcomes of runs, and lessons, as a gateway does when a run is over."""
    if not settings.storage.store_content:
        return
    # No model is asked about them: an import costs nothing.
    free = replace(settings, learning=replace(settings.learning, model=""))
    learner = open_learner(stores, free)
    for run_id in runs:
        await learner.read(run_id, None)
        done()


def _line(kept: Kept) -> str:
    others = {"known already": kept.known, "recorded live": kept.live}
    also = ", ".join(f"{number} {how}" for how, number in others.items() if number)
    sessions = counted(kept.kept, "session")
    return f"kept {sessions} as past runs{f' ({also})' if also else ''}: gateway dashboard"
