"""Settings of the embedder; importing this module loads no model."""

from __future__ import annotations

from dataclasses import dataclass

LITELLM_PREFIX = "litellm/"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """Which embedder to use, and how to reach a provider's.

    `embedder`: `static` (built in), `hashing` (no model), or `litellm/<model>` for an embedding
    model of any provider LiteLLM knows. `dimensions`: requested of the provider, None = its
    default; `api_base`, `api_key`: None = LiteLLM's own; `timeout_s`: of one provider call;
    `cache_entries`: how many texts' vectors are cached in memory, 0 = none.

    Raises: ValueError (`<field>: <what is wrong>`).
    """

    embedder: str = "static"
    dimensions: int | None = None
    api_base: str | None = None
    api_key: str | None = None
    timeout_s: float = 5.0
    cache_entries: int = 4096

    def __post_init__(self) -> None:
        named = self.embedder.startswith(LITELLM_PREFIX) and self.embedder != LITELLM_PREFIX
        if self.embedder not in ("static", "hashing") and not named:
            raise ValueError(
                f"embedder: {self.embedder!r} is not one of static, hashing, "
                f"{LITELLM_PREFIX}<model>"
            )
        if self.dimensions is not None and not 1 <= self.dimensions <= 4096:
            raise ValueError(f"dimensions: must be 1 to 4096, got {self.dimensions}")
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError("timeout_s: must be above 0, and finite")
        if self.cache_entries < 0:
            raise ValueError("cache_entries: must be 0 or more")

    @property
    def model(self) -> str:
        """The provider's model name, empty for the built-in embedders."""
        return self.embedder.removeprefix(LITELLM_PREFIX) if "/" in self.embedder else ""
