"""Trouble ahead: the label of difficulty, which every recorded run has without its outcome."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.offline.ridge import Array

HORIZON = 5
"""Steps ahead in which trouble is counted. Source: design section 7."""
LEAST_TROUBLES = 2
"""Troubled steps among them that make a stretch hard: one look too many is no trouble."""


def trouble_ahead(troubles: Sequence[float] | Array) -> Array:
    """Per step, 1 if at least two of the next five steps are trouble, else 0; NaN for the last."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(troubles, dtype=np.float64))])
    length = len(total) - 1
    ahead = np.array([total[min(i + 1 + HORIZON, length)] - total[i + 1] for i in range(length)])
    labels = (ahead >= LEAST_TROUBLES).astype(np.float64)
    labels[-1:] = np.nan
    return np.asarray(labels)
