"""The gateway as processes on a machine: their sockets and workers, what is checked before they
start, and where a user's other commands find them. Nothing here knows of requests."""

import gc

# Python has 700, 10 and 10. Source of the first: bench/steps.py, see `freeze_startup_objects` of
# workers.py. The second is low, so that a pass over the middle generation, which stops all else,
# covers less.
_THRESHOLDS = (20_000, 5, 80)


def collect_less_often() -> None:
    """Look for garbage after more new objects than by default: among the objects of a start, which
    all stay, it took an eighth of the time of `import gateway.server`."""
    gc.set_threshold(*_THRESHOLDS)
