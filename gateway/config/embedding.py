"""Settings of the embedder."""

from gateway.config.values import above_zero, at_least
from gateway.values import frozen

LITELLM_PREFIX = "litellm/"


@frozen
class EmbeddingSettings:
    """The embedder, and the access to a provider's. Raises: ValueError (`<field>: <what is
    wrong>`)."""

    # static = built in, hashing = for tests, litellm/<model> = a provider's model
    embedder: str = "static"
    dimensions: int | None = None  # requested from the provider; None = its default
    api_base: str | None = None  # URL of the provider's API; None = LiteLLM's default
    api_key: str | None = None  # key of the provider; None = LiteLLM reads it from the environment
    timeout_s: float = 5.0  # longest provider call; seconds
    cache_entries: int = 4096  # vectors kept in memory, by text; 0 = none

    def __post_init__(self) -> None:
        named = self.embedder.startswith(LITELLM_PREFIX) and self.embedder != LITELLM_PREFIX
        if self.embedder not in ("static", "hashing") and not named:
            known = f"static, hashing, {LITELLM_PREFIX}<model>"
            raise ValueError(f"embedder: {self.embedder!r} is not one of {known}")
        if self.dimensions is not None and not 1 <= self.dimensions <= 4096:
            raise ValueError(f"dimensions: must be 1 to 4096, got {self.dimensions}")
        above_zero(self, "timeout_s")
        at_least(self, 0, "cache_entries")

    @property
    def model(self) -> str:
        """The provider's model name, empty for the built-in embedders."""
        if "/" in self.embedder:
            return self.embedder.removeprefix(LITELLM_PREFIX)
        return ""
