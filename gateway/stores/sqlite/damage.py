"""Damage of a database's file: it is looked for with SQLite's own checks, and what is damaged is
kept beside the file under a dated name."""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import apsw
import structlog

from gateway.config.storage import SPOOL
from gateway.stores.sqlite.connection import INDEX, LOG, locked

QUICK = "quick_check"
"""Finds pages that are damaged or in no table; reads about 250 MB in a second."""

THOROUGH = "integrity_check"
"""Compares the indexes with their tables, too."""

_MAGIC = b"SQLite format 3\0"  # what a database begins with

Missing = Callable[[apsw.Connection], str]
"""Names the tables that a database lacks though all its migrations were applied."""


def damage(
    path: str,
    check: str,
    missing: Missing,
    *,
    log: bool = True,
    given_up: Callable[[], bool] = lambda: False,
) -> str:
    """The first thing that is wrong with a file, with its write-ahead log or without; empty when
    nothing is, or when the check is `given_up`. Raises: apsw.Error: it cannot be checked now."""
    alone = "" if log else "?immutable=1"
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    try:
        with closing(apsw.Connection(Path(path).absolute().as_uri() + alone, flags)) as connection:
            # Closing the last connection would move the log into a file that it may not belong to.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.set_progress_handler(given_up, 10_000)
            found = str(connection.execute(f"PRAGMA {check}(1)").get)
            return " ".join(found.split()) if found != "ok" else missing(connection)
    except apsw.InterruptError:
        return ""
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return str(error)


def _is_ours(path: str) -> bool:
    """False for a file of another kind with nothing of a gateway beside it: a path that is wrong
    must not move somebody's file."""
    if os.path.exists(path + LOG) or os.path.isdir(path + SPOOL):
        return True
    with closing(apsw.Connection(path, apsw.SQLITE_OPEN_READONLY)) as connection:
        _, begins = connection.read("main", 0, 0, len(_MAGIC))
    return begins == _MAGIC or not any(begins)


def set_aside(
    path: str, check: str, missing: Missing, given_up: Callable[[], bool] = lambda: False
) -> str:
    """Look for damage in a file that nobody has open; a damaged one gets another name, with its
    log. A file that is sound without its log, as a backup is that was copied there, stays: only
    the log goes. Returns the name under which they are kept, empty when nothing is damaged. Raises:
    apsw.Error, OSError."""
    if not os.path.exists(path):
        return ""
    with locked(Path(path).parent):
        reason = damage(path, check, missing, given_up=given_up)
        if not reason or not _is_ours(path):
            return ""
        stays = os.path.getsize(path) > 0 and not damage(path, THOROUGH, missing, log=False)
        kept = f"{path}.damaged-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
        for suffix in (LOG,) if stays else ("", LOG):
            with suppress(FileNotFoundError):
                os.rename(path + suffix, kept + suffix)
        Path(path + INDEX).unlink(missing_ok=True)
    structlog.get_logger("gateway.store").error(
        "the log of the database does not fit its file, which is used without it as a backup is"
        if stays
        else "the database is damaged: a new one is made (restore a backup by renaming it)",
        path=path,
        reason=reason,
        kept=kept + (LOG if stays else ""),
    )
    return os.path.basename(kept) + (LOG if stays else "")
