"""What is measured beyond the usual."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.config.values import at_least

_TAG = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilitySettings:
    """Labels of metrics.

    `metric_tags`: tags of runs (`x-gateway-tag-NAME`) that are labels of `gateway_tagged_*`; each
    combination of values is a time series. `metric_tag_values`: most values of one tag; further
    ones count as `other`.
    """

    metric_tags: tuple[str, ...] = ()
    metric_tag_values: int = 100

    def __post_init__(self) -> None:
        for tag in self.metric_tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(f"metric_tags: {tag!r} is no name of a tag in lower case")
        if len(set(self.metric_tags)) < len(self.metric_tags):
            raise ValueError("metric_tags: a tag is named twice")
        at_least(self.metric_tag_values, 1, "metric_tag_values")


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
