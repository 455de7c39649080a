"""Settings of OpenTelemetry; where it sends to is in the standard `OTEL_*` variables."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.values import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """What the spans of model calls hold besides numbers and names.

    `content`: whether they hold the texts of the newest messages and of the answer, each cut to
    `max_chars` characters.
    """

    content: bool = False
    max_chars: int = 4000

    def __post_init__(self) -> None:
        at_least(self.max_chars, 1, "max_chars")
