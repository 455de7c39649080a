"""Temporary files of the tests in memory, where the machine offers a folder for that."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108 - the tests make folders of their own in it
_ENOUGH_BYTES = 4 * 2**30
"""The suite keeps under half a GB at a time, most of it database servers and environments."""


def use_memory_folder() -> None:
    """Let `tempfile`, pytest and the tests' processes use `/dev/shm`, unless TMPDIR says where.

    Thousands of gateways write a database each and wait for the disk at every commit, which tests
    that are not about the disk need not. A folder that is small, or from which no program can be
    started, is left alone: many containers have such a one.

    The folders of pytest lie beside the others, which go at the end: it keeps those of tests that
    failed. Workers of pytest inherit both from the process that starts them.
    """
    if "TMPDIR" in os.environ or not os.access(_FOLDER, os.W_OK | os.X_OK):
        return
    found = os.statvfs(_FOLDER)
    if found.f_flag & os.ST_NOEXEC or found.f_bavail * found.f_frsize < _ENOUGH_BYTES:
        return
    folder = Path(tempfile.mkdtemp(prefix="gw-tests-", dir=_FOLDER))
    folder.chmod(0o755)  # a database server runs as another user than root
    atexit.register(_remove, folder, os.getpid())
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_FOLDER))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # no child of it
        shutil.rmtree(folder, ignore_errors=True)
