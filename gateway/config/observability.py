"""Settings of monitoring: texts in spans."""

from gateway.config.values import at_least
from gateway.values import frozen


@frozen
class OtelSettings:
    """Texts in the spans of model calls, besides numbers and names."""

    content: bool = False  # whether spans hold the texts of the newest messages and of the answer
    max_chars: int = 4000  # longest of these texts; characters

    def __post_init__(self) -> None:
        at_least(self, 1, "max_chars")
