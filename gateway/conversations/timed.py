"""How long a part of steering takes."""

from __future__ import annotations

import time


class timed:
    """Adds the elapsed time to `timings`, in milliseconds, unless the block fails."""

    __slots__ = ("_begun", "_name", "_timings")

    def __init__(self, timings: dict[str, float], name: str) -> None:
        self._timings = timings
        self._name = name

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            spent_ms = (time.perf_counter() - self._begun) * 1000
            self._timings[self._name] = self._timings.get(self._name, 0.0) + spent_ms
