"""The settings that the decisions of the core depend on, as one value with a digest."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from typing import Literal

from gateway.core.fsm import FSMSettings
from gateway.core.monitors import MonitorSettings
from gateway.core.scoring.scorer import DifficultySettings
from gateway.values import frozen

RunBoundary = Literal["settled_answer", "final_answer", "never"]
RUN_BOUNDARIES: tuple[RunBoundary, ...] = ("settled_answer", "final_answer", "never")


@frozen
class Policy:
    """The settings that the decisions depend on; an equal policy gives equal decisions in a
    replay."""

    fsm: FSMSettings = FSMSettings()  # thresholds and windows of the states
    # which scorer scores a step
    difficulty: DifficultySettings = DifficultySettings()
    # suite, weights and thresholds of the alarms
    monitors: MonitorSettings = MonitorSettings()
    # `final_answer` ends a run where an assistant message without a call is followed by a user
    # message; `settled_answer` does so unless that message asks the user something; `never` keeps a
    # conversation in one run. Source of the default: docs/evidence.md
    run_boundary: RunBoundary = "settled_answer"

    def digest(self) -> str:
        """SHA-256 over all values, 64 hex digits; equal for equal policies in any process."""
        canonical = json.dumps(_plain(self), sort_keys=True, separators=(",", ":"))
        return sha256(canonical.encode()).hexdigest()


def _plain(value: object) -> object:
    """`value` in JSON types; sets are sorted, and 1 and 1.0 become the same number."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(item)) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return value
