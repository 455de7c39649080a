"""The tree of settings: sections, defaults, units and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from gateway.embedding.settings import EmbeddingSettings
from gateway.steering.acting import ActSettings
from gateway.steering.calibration import calibration_from_json
from gateway.steering.conversation import ConversationSettings
from gateway.steering.difficulty import DifficultySettings, ScorerName
from gateway.steering.etrace.settings import EtraceSettings, InjectionSettings
from gateway.steering.experiments import ExperimentSettings
from gateway.steering.fsm import FSMSettings
from gateway.steering.monitors import MonitorSettings
from gateway.steering.policy import Policy, RunBoundary
from gateway.steering.routing import Routes, RoutingSettings
from gateway.stores.settings import StorageSettings

Lane = Literal["auto", "native", "litellm"]
Mode = Literal["on", "shadow", "off"]

OPENAI_API_BASE = "https://api.openai.com/v1"


class Secret(str):
    """Text that never shows itself in a repr, a log line or an error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'*****'"


def _at_least(value: float, low: float, name: str) -> None:
    if value < low:
        raise ValueError(f"{name}: must be at least {low:g}, got {value:g}")


def _http_url(value: str, name: str) -> None:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as exc:
        raise ValueError(f"{name}: {value!r}: {exc}") from None
    known = parts.scheme in ("http", "https") and parts.hostname
    if not known or not value.isprintable() or " " in value:
        raise ValueError(f"{name}: {value!r} is not an http(s) URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where the gateway listens, and what it accepts."""

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_mb: float = 64
    max_buffered_response_mb: float = 32
    max_concurrent_requests: int = 0
    sse_keepalive_s: float = 0
    drain_s: float = 30

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: must be 0 to 65535, got {self.port}")
        for name in ("max_body_mb", "max_buffered_response_mb"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0")
        for name in ("max_concurrent_requests", "sse_keepalive_s", "drain_s"):
            _at_least(getattr(self, name), 0, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """How long an upstream may take, in seconds; 0 waits for ever."""

    connect_s: float = 10
    first_byte_s: float = 600
    idle_s: float = 300
    total_s: float = 3600

    def __post_init__(self) -> None:
        for name in ("connect_s", "first_byte_s", "idle_s", "total_s"):
            _at_least(getattr(self, name), 0, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """The provider that serves every name without a deployment.

    `provider_prefixes`: whether `anthropic/...` and its like are sent through LiteLLM to that
    provider; off where the upstream itself uses such names (OpenRouter). `messages_api_base`: where
    `/v1/messages` requests go; by default Anthropic's API while `api_base` is OpenAI's, else
    `api_base` itself.
    """

    api_base: str = OPENAI_API_BASE
    api_key: Secret | None = None
    provider_prefixes: bool = True
    messages_api_base: str | None = None

    def __post_init__(self) -> None:
        _http_url(self.api_base, "api_base")
        if self.messages_api_base is not None:
            _http_url(self.messages_api_base, "messages_api_base")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One entry of `model_list`: what a requested model name maps to.

    `dialects`: the wires the upstream speaks itself, where that is known better than by default
    (`chat` and `responses` on OpenAI's wire, `messages` at Anthropic); requests in any other are
    translated by LiteLLM.
    """

    model_name: str
    litellm_params: Mapping[str, Any]
    lane: Lane = "auto"
    weight: float = 1
    forward_client_key: bool = False
    dialects: tuple[Literal["chat", "responses", "messages"], ...] | None = None
    model_info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ValueError("model_name: may not be empty")
        if not isinstance(self.litellm_params.get("model"), str):
            raise ValueError("litellm_params.model: required")
        for name in ("api_base", "base_url"):
            if url := self.litellm_params.get(name):
                _http_url(str(url), f"litellm_params.{name}")
        _at_least(self.weight, 0, "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Retries, fallbacks and balancing, for failures before the first byte."""

    num_retries: int = 2
    backoff_s: float = 0.25
    max_retry_after_s: float = 5
    cooldown_s: float = 5
    allowed_fails: int = 3
    max_connections: int = 1000
    fallbacks: tuple[Mapping[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_retries", "backoff_s", "max_retry_after_s", "cooldown_s"):
            _at_least(getattr(self, name), 0, name)
        _at_least(self.allowed_fails, 1, "allowed_fails")
        _at_least(self.max_connections, 0, "max_connections")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """Log lines: level, and JSON for machines or coloured text for a terminal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Keys the gateway asks for; none configured means no key is asked for on loopback."""

    gateway_keys: Mapping[str, Secret] = field(default_factory=dict)
    admin_key: Secret | None = None


LEAST_JUDGE_MS = 100
"""A limit under which no model answers over a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """The model that scorer `judge` asks, and how long a request waits for it.

    `model`: a name as a client would ask for it; its deployment holds the key. `timeout_ms`:
    longest wait, in milliseconds; `deadline_share`: of `steering.deadline_ms`, in (0, 1), when that
    is less. `cache_entries`: questions whose scores are kept in memory, 0 = none.
    """

    model: str = ""
    timeout_ms: float = 2000
    deadline_share: float = 0.8
    cache_entries: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.timeout_ms < float("inf"):
            raise ValueError("timeout_ms: must be above 0, and finite")
        if not 0 < self.deadline_share < 1:
            raise ValueError("deadline_share: must be above 0 and below 1")
        _at_least(self.cache_entries, 0, "cache_entries")

    def limit_s(self, deadline_ms: float) -> float:
        """Longest wait for a score, in seconds.

        Raises:
            ValueError: no model is named, or the deadline leaves it no time to answer.
        """
        if not self.model:
            raise ValueError("difficulty.judge.model: needed by scorer judge")
        limit_ms = min(self.timeout_ms, self.deadline_share * deadline_ms)
        if limit_ms < LEAST_JUDGE_MS:
            raise ValueError(
                f"difficulty.judge: {limit_ms:g} ms are no time for a model to answer; raise "
                "steering.deadline_ms and difficulty.judge.timeout_ms"
            )
        return limit_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSettings:
    """Which difficulty scorer, and its weights: the shipped ones, or those of a file.

    `judge`: a model asked about each new step, for the scorer of that name.
    """

    scorer: ScorerName = "calibrated"
    weights_file: str | None = None
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    def load(self) -> DifficultySettings:
        """The scorer's settings with the weights read.

        Raises:
            ValueError: the file cannot be read, or is not one of weights.
        """
        if self.weights_file is None:
            return DifficultySettings(scorer=self.scorer)
        try:
            text = Path(self.weights_file).read_text(encoding="utf-8")
            weights = calibration_from_json(text)
        except (OSError, ValueError) as exc:
            problem = exc.strerror if isinstance(exc, OSError) else exc
            raise ValueError(f"difficulty.weights_file: {self.weights_file}: {problem}") from exc
        return DifficultySettings(scorer=self.scorer, calibration=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringSettings:
    """Whether requests are steered, how long that may take, and how much memory it may use.

    `mode`: `on`; `shadow` computes and records everything and changes no byte; `off` records only.
    `token_budget`: tokens of one run, tracked and shown; with `budget_action: wrap_up` a run that
    has used them up is told on every call to hand over what it has.
    `act_above`: expected precision that an action needs, by action; what is left out keeps its
    default (docs/evidence.md).
    `stream_usage`: whether `stream_options.include_usage` is added to streams whose client did not
    ask for it (the extra chunk is taken out again): `auto` where tokens are needed to decide,
    `always` to know the cost of every call, `never`.
    """

    mode: Mode = "on"
    deadline_ms: float = 50
    stream_usage: Literal["auto", "always", "never"] = "auto"
    token_budget: int | None = None
    budget_action: Literal["none", "wrap_up"] = "none"
    act_above: Mapping[str, float] = field(default_factory=dict)
    max_conversations_in_memory: int = 5000
    max_transcripts_in_memory: int = 128
    max_prefix_memory_mb: float = 8

    def __post_init__(self) -> None:
        if self.deadline_ms <= 0:
            raise ValueError("deadline_ms: must be above 0")
        self.acting()
        if self.token_budget is not None:
            _at_least(self.token_budget, 1, "token_budget")
        _at_least(self.max_conversations_in_memory, 1, "max_conversations_in_memory")
        _at_least(self.max_transcripts_in_memory, 1, "max_transcripts_in_memory")
        _at_least(self.max_prefix_memory_mb, 0, "max_prefix_memory_mb")

    @property
    def wrap_up_at(self) -> int | None:
        """Tokens from which a run is told to hand over; None = it is not."""
        return self.token_budget if self.budget_action == "wrap_up" else None

    def acting(self) -> ActSettings:
        """The bars above which each action is taken. Raises ValueError for an unknown action."""
        return ActSettings(act_above=self.act_above)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a gateway can be told."""

    server: ServerSettings = field(default_factory=ServerSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    default_upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    model_list: tuple[Deployment, ...] = ()
    router: RouterSettings = field(default_factory=RouterSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    steering: SteeringSettings = field(default_factory=SteeringSettings)
    conversations: ConversationSettings = field(default_factory=ConversationSettings)
    difficulty: ScorerSettings = field(default_factory=ScorerSettings)
    fsm: FSMSettings = field(default_factory=FSMSettings)
    monitors: MonitorSettings = field(default_factory=MonitorSettings)
    model_routing: Mapping[str, str] = field(default_factory=dict)
    model_routing_by_model: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    etraces: EtraceSettings = field(default_factory=EtraceSettings)
    injection: InjectionSettings = field(default_factory=InjectionSettings)
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    experiment: ExperimentSettings = field(default_factory=ExperimentSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)

    def __post_init__(self) -> None:
        self.routes()
        self.policy()
        self.judge_limit_s()

    def routes(self) -> Routes:
        """The two routing maps as one value. Raises ValueError for an unknown state."""
        return Routes(by_state=self.model_routing, by_model=self.model_routing_by_model)

    def judge_limit_s(self) -> float | None:
        """Longest wait for a judged score, in seconds; None when no model judges.

        Raises:
            ValueError: no model is named, or it would have no time.
        """
        if self.difficulty.scorer != "judge":
            return None
        return self.difficulty.judge.limit_s(self.steering.deadline_ms)

    def policy(self) -> Policy:
        """What the decision core decides by."""
        return Policy(
            fsm=self.fsm,
            difficulty=self.difficulty.load(),
            monitors=self.monitors,
            run_boundary=cast(RunBoundary, self.conversations.run_boundary),
        )
