"""Damage of a database's file: it is looked for with SQLite's own checks, and what is damaged is
kept beside the file under a dated name."""

import os
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import apsw

from gateway.config.storage import SPOOL
from gateway.errors import in_words
from gateway.observability.logging import get_logger
from gateway.stores.protocols import StoreUnavailable
from gateway.stores.sqlite.files import APPLICATION_ID, INDEX, LOG, finish, locked

# Finds pages that are damaged or in no table; reads about 250 MB in a second.
QUICK = "quick_check"

# Compares the indexes with their tables, too.
THOROUGH = "integrity_check"

_TABLES = "SELECT 1 FROM conversations, heads, runs, steps, injections LIMIT 0"
_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI


def damage(path: str, check: str, *, alone: str = "", limit_s: float = inf) -> str:
    """The first thing that is wrong with a file; empty when nothing is, or when the check takes
    longer than `limit_s`. `alone`: `?immutable=1` for the file without its write-ahead log. Raises:
    apsw.Error: it cannot be checked now."""
    ends_at = time.monotonic() + limit_s
    try:
        with closing(apsw.Connection(Path(path).absolute().as_uri() + alone, _FLAGS)) as connection:
            # Closing the last connection would move the log into a file that it may not belong to.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.set_progress_handler(lambda: time.monotonic() > ends_at, 10_000)
            found = str(connection.execute(f"PRAGMA {check}(1)").get)
            if found != "ok":
                return " ".join(found.split())
            if _has_changes(connection):
                connection.execute(_TABLES)
            return ""
    except apsw.InterruptError:
        return ""
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
        return str(error)


def _has_changes(connection: apsw.Connection) -> bool:
    """True for a gateway's file that a migration has changed. Another gateway may be about to make
    the tables of a new one, whose first migration makes all that are asked for."""
    if connection.pragma("application_id") != APPLICATION_ID:
        return False
    made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").get
    return bool(made and connection.execute("SELECT count(*) FROM migrations").get)


def set_aside(path: str, check: str, limit_s: float = inf) -> str:
    """Look for damage in a file that nobody has open. A damaged file gets another name, with its
    log. A file that is sound without its log, such as a copied backup, stays, and only the log
    goes. A file that is no database stays as well, unless files of a gateway are next to it: the
    path may be wrong. Returns the new name, "" if the file stays. Raises: StoreUnavailable."""
    if not os.path.exists(path):
        return ""
    try:
        with locked(Path(path).parent):
            finish(path)
            reason = damage(path, check, limit_s=limit_s)
            known = os.path.exists(path + LOG) or os.path.isdir(path + SPOOL)
            if not reason or ("not a database" in reason and not known):
                return ""
            stays = os.path.getsize(path) and not damage(path, THOROUGH, alone="?immutable=1")
            kept = f"{path}.damaged-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
            for suffix in (LOG,) if stays else ("", LOG):
                with suppress(FileNotFoundError):
                    os.rename(path + suffix, kept + suffix)
            Path(path + INDEX).unlink(missing_ok=True)
    except (OSError, apsw.Error) as error:
        raise StoreUnavailable(f"{path!r} cannot be checked ({in_words(error)})") from error
    kept += LOG if stays else ""
    get_logger("gateway.store").error(
        "the log of the database does not fit its file, which is used without it as a backup is"
        if stays
        else "the database is damaged: a new one is made (see `gateway restore`)",
        path=path,
        reason=reason,
        kept=kept,
    )
    return os.path.basename(kept)
