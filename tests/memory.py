"""Memory of a worker of the tests: what a test leaves behind is given back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import warnings
from pathlib import Path

_STEP = 24 * 2**20
"""Bytes that a process may grow by before it is looked through for garbage: the loops and
applications of gateways that ended refer to each other, and hold the bodies that they served."""

_ARENAS = (-8, 2)
"""glibc's M_ARENA_MAX: each thread of the thousands of gateways would get a heap of its own."""

_MAPPED = (-3, 2**20)
"""glibc's M_MMAP_THRESHOLD: larger blocks are given back at once. By itself it grows to 32 MB with
the first body of that size, and the blocks stay."""

_STATM = Path("/proc/self/statm")
_MANY_MODULES = 500
"""So many new ones, as LiteLLM has, are left out when garbage is looked for: they stay."""

_after_last = 0
_modules = 0


def save_memory() -> None:
    """Let the C library give memory back, where it is glibc."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for parameter, value in (_ARENAS, _MAPPED):
            libc.mallopt(parameter, value)


def give_back() -> None:
    """Collect garbage if this process has grown since the last time; elsewhere than on Linux, do
    nothing."""
    global _after_last, _modules
    if not _STATM.exists() or _resident() < _after_last + _STEP:
        return
    with warnings.catch_warnings():
        # In a circle a socket may go before the client that would have closed it, in the name of a
        # test that has nothing to do with it.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    if len(sys.modules) > _modules + _MANY_MODULES:
        _modules = len(sys.modules)
        gc.freeze()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    _after_last = _resident()


def peak_mb() -> int:
    """The most memory that this process has taken so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
