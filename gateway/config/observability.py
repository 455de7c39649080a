"""Settings of monitoring: labels of metrics, texts in spans."""

import re

from gateway.config.values import at_least
from gateway.values import frozen

_TAG = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@frozen
class ObservabilitySettings:
    """Labels of metrics: tags of runs, and most values of one tag."""

    # [team, env]; each combination of values is a time series of its own
    metric_tags: tuple[str, ...] = ()
    metric_tag_values: int = 100  # most values of one tag; further ones count as "other"

    def __post_init__(self) -> None:
        for tag in self.metric_tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(f"metric_tags: {tag!r} is no name of a tag in lower case")
        if len(set(self.metric_tags)) < len(self.metric_tags):
            raise ValueError("metric_tags: a tag is named twice")
        at_least(self, 1, "metric_tag_values")


@frozen
class OtelSettings:
    """Texts in the spans of model calls, besides numbers and names."""

    content: bool = False  # whether spans hold the texts of the newest messages and of the answer
    max_chars: int = 4000  # longest of these texts; characters

    def __post_init__(self) -> None:
        at_least(self, 1, "max_chars")
