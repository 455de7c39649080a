"""How often this process looks for garbage."""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 5, 80)
"""Python's are 700, 10 and 10. Source of the first: bench/steps.py, see `freeze_startup_objects`.
The second is low, so that a pass over the middle generation, which stops all else, covers less."""


def collect_less_often() -> None:
    """Look for garbage after more new objects than by default.

    A start makes hundreds of thousands of objects that all stay: looking for garbage among them
    took an eighth of the time of `import gateway.server`.
    """
    gc.set_threshold(*_THRESHOLDS)


def freeze_startup_objects() -> None:
    """Exclude the objects of the start from garbage collection, and collect less often.

    Parsing a long body creates ten thousand objects; with the default threshold that causes
    fourteen collections, each over all objects of the start. Source: bench/steps.py, where this
    halved the time of a call at step 1,000.
    """
    gc.collect()
    gc.freeze()
    collect_less_often()
