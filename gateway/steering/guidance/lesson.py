"""What is known of a pattern that was learned from runs: its status, its origin, its trial."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct


class Status(enum.StrEnum):
    """The state of a lesson. Only `trial` and `active` ones are retrieved."""

    CANDIDATE = "candidate"
    TRIAL = "trial"
    ACTIVE = "active"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


RETRIEVED = (Status.TRIAL, Status.ACTIVE)


class Trust(enum.StrEnum):
    """The least trusted source that a lesson's text comes from, the most trusted first."""

    OPERATOR = "operator"
    TEMPLATE = "template"
    USER = "user"
    MODEL = "model"
    TOOL = "tool"

    @property
    def advises(self) -> bool:
        """Whether the text may be phrased as advice; otherwise it is shown as a quotation."""
        return self in (Trust.OPERATOR, Trust.TEMPLATE)


class Lesson(Struct, frozen=True, kw_only=True):
    """What makes a pattern a lesson.

    `version` and `supersedes`: an edited lesson is a new one, one version later, that names the one
    it replaces. `origin`: `mined`, `distilled` or `written`. `key`: of the failure that it answers
    (`gateway.steering.evidence.failure_keys`). `applies_when`: conditions and marks, by name.
    `last_confirmed_at`, `expires_at`: seconds of the epoch. `share`: of the occasions on which it
    is given, in (0, 1).
    """

    key: str
    status: Status = Status.CANDIDATE
    version: int = 1
    supersedes: str = ""
    origin: str = "mined"
    trust: Trust = Trust.TEMPLATE
    applies_when: Mapping[str, str] = {}
    last_confirmed_at: float = 0.0
    expires_at: float | None = None
    share: float = 0.5

    @property
    def retrieved(self) -> bool:
        """Whether runs may be given it."""
        return self.status in RETRIEVED
