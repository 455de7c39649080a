"""Settings of upstream calls: addresses, timeouts, retries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gateway.config.values import Secret, at_least, http_url
from gateway.dialects import DIALECTS

Lane = Literal["auto", "native", "litellm"]
if TYPE_CHECKING:
    DialectName = str
else:
    DialectName = Literal[tuple(DIALECTS)]  # a type checker wants the names spelt out

OPENAI_API_BASE = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Time limits of upstream calls, in seconds; 0 = none."""

    connect_s: float = 10
    first_byte_s: float = 600
    idle_s: float = 300
    total_s: float = 3600

    def __post_init__(self) -> None:
        at_least(self, 0, "connect_s", "first_byte_s", "idle_s", "total_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """The provider that serves every model name without a deployment.

    `provider_prefixes`: whether names such as `anthropic/...` go to that provider through LiteLLM;
    off for an upstream that itself uses such names (OpenRouter). None: while no gateway keys exist,
    because whoever may name providers may use every credential in the gateway's environment.
    `messages_api_base`: the target of
    `/v1/messages` requests; by default Anthropic's API if `api_base` is OpenAI's, else `api_base`.
    """

    api_base: str = OPENAI_API_BASE
    api_key: Secret | None = None
    provider_prefixes: bool | None = None
    messages_api_base: str | None = None

    def __post_init__(self) -> None:
        http_url(self.api_base, "api_base")
        if self.messages_api_base is not None:
            http_url(self.messages_api_base, "messages_api_base")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One entry of `model_list`: a deployment that serves a requested model name. `dialects`: the
    dialects that the upstream speaks, if not the default (`chat` and `responses` for OpenAI's API,
    `messages` for Anthropic's); requests in any other are translated by LiteLLM."""

    model_name: str
    litellm_params: Mapping[str, Any]
    lane: Lane = "auto"
    weight: float = 1
    forward_client_key: bool = False
    dialects: tuple[DialectName, ...] | None = None
    model_info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ValueError("model_name: may not be empty")
        if not isinstance(self.litellm_params.get("model"), str):
            raise ValueError("litellm_params.model: required")
        for name in ("api_base", "base_url"):
            if url := self.litellm_params.get(name):
                http_url(str(url), f"litellm_params.{name}")
        weight = self.litellm_params.get("weight", 1)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise ValueError(f"litellm_params.weight: expected a number, got {weight!r}")
        at_least(self, 0, "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Retries, fallbacks and balancing for failures before the first byte; times in seconds."""

    num_retries: int = 2
    backoff_s: float = 0.25
    max_retry_after_s: float = 5
    cooldown_s: float = 5
    allowed_fails: int = 3
    max_connections: int = 1000
    fallbacks: tuple[Mapping[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        at_least(self, 0, "num_retries", "backoff_s", "max_retry_after_s", "cooldown_s")
        at_least(self, 1, "allowed_fails")
        at_least(self, 0, "max_connections")
