"""Copies of a database's file, each whole while others write to it."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import apsw

from gateway.stores.protocols import StoreFull

_PART = "-part"  # suffix of a copy that is not whole yet


def copy_file(source: apsw.Connection, path: str) -> None:
    """Write what `source` sees now to a file that its owner alone can read, in place of an earlier
    one at `path`. Raises: StoreFull: the disk lacks room for it; OSError, apsw.Error."""
    needed = source.pragma("page_count") * source.pragma("page_size")
    free = shutil.disk_usage(Path(path).absolute().parent).free
    if free < needed:
        raise StoreFull(
            f"a copy at {path!r} needs {needed / 2**20:.1f} MiB, and {free / 2**20:.1f} are free"
        )
    part = path + _PART
    Path(part).unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(apsw.Connection(part)) as target:
            with target.backup("main", source, "main") as pages:
                pages.step()
            # One file, also where nobody may write beside it.
            target.pragma("journal_mode", "delete")
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
