"""The tree of settings: sections, defaults and limits; and the presets.

`config.yaml` documents every key with its unit; the docstrings add what its lines cannot hold. A
preset takes the place of defaults. A value of the file that is not the default, and any value of
the environment, wins over the preset's: a file may name every key, as `config.yaml` does."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from gateway.config.alerts import AlertSettings, ObservabilitySettings, OtelSettings
from gateway.config.budgets import BudgetSettings, ControlSettings, check_budgets, token_budget
from gateway.config.models import (
    EmbeddingSettings,
    LearningSettings,
    ReaderSettings,
    ScorerSettings,
)
from gateway.config.storage import StorageSettings
from gateway.config.values import (
    Secret,
    above_zero,
    at_least,
    host_pattern,
    http_url,
    origin_pattern,
)
from gateway.core.acting import ActSettings
from gateway.core.fsm import FSMSettings
from gateway.core.guidance_settings import EtraceSettings, InjectionSettings
from gateway.core.monitors import MonitorSettings
from gateway.core.policy import Policy, RunBoundary
from gateway.core.routing import Routes, RoutingSettings
from gateway.core.steer import SteeringRules
from gateway.dialects import DIALECTS
from gateway.steering.experiments import ExperimentSettings
from gateway.steering.identity import ConversationSettings
from gateway.values import FieldDict, Fields, frozen

PresetName = Literal["default", "seeds"]

SEEDS: Fields = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text("utf-8"))
"""Values of the preset `seeds`; its file names their sources."""

PRESETS: Mapping[str, Fields] = {"default": {}, "seeds": SEEDS}
assert set(PRESETS) == set(get_args(PresetName))


def fill(values: FieldDict, preset: Fields, defaults: object) -> None:
    """Put the values of a preset into `values` where they have none but the default. `defaults`:
    the settings without any file."""
    for key, wanted in preset.items():
        default = getattr(defaults, key, None)
        own = values.get(key)
        if not isinstance(wanted, Mapping):
            if key not in values or own == default:
                values[key] = wanted
        elif own is None or isinstance(own, dict):
            values[key] = own or {}
            fill(values[key], wanted, default)


Mode = Literal["on", "shadow", "off"]


@frozen
class ServerSettings:
    """Address of the gateway and limits of requests; sizes in MiB and KiB, times in seconds.
    `trusted_origins`: a `*` in place of the port or, except for http and https, of the host stands
    for any. `null` is the origin of any page in a sandbox, and counts only where a key is required.
    `max_bytes_in_flight_mb`: a body is held to the end of its request, and takes four times its
    size in memory while it is parsed and sent (measured: six of 60 MiB 1,430 MiB). `max_body_s`: a
    client that needs longer has to send 16 KiB in each further second, or it would hold its room
    for ever."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    trusted_hosts: tuple[str, ...] = ("host.docker.internal", "host.containers.internal")
    trusted_origins: tuple[str, ...] = ()
    max_head_kb: float = 64
    max_head_fields: int = 100
    max_pipelined_requests: int = 16
    max_head_s: float = 10
    keep_alive_s: float = 75
    max_body_mb: float = 64
    max_body_s: float = 60
    max_buffered_response_mb: float = 32
    max_concurrent_requests: int = 0
    max_bytes_in_flight_mb: float = 144
    body_wait_s: float = 30
    sse_keepalive_s: float = 0
    drain_s: float = 30

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise ValueError("host: may not be empty; 0.0.0.0 listens on all addresses")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: must be 0 to 65535, got {self.port}")
        above_zero(self, "max_body_mb", "max_buffered_response_mb", "max_head_kb", "max_head_s")
        above_zero(self, "keep_alive_s", "max_body_s")
        at_least(self, 1, "workers", "max_head_fields", "max_pipelined_requests")
        at_least(self, 0, "max_concurrent_requests", "max_bytes_in_flight_mb")
        at_least(self, 0, "sse_keepalive_s", "drain_s", "body_wait_s")
        for host in self.trusted_hosts:
            host_pattern(host, "trusted_hosts")
        for origin in self.trusted_origins:
            origin_pattern(origin, "trusted_origins")


Lane = Literal["auto", "native", "litellm"]
if TYPE_CHECKING:
    DialectName = str
else:
    DialectName = Literal[tuple(DIALECTS)]  # a type checker wants the names spelt out

OPENAI_API_BASE = "https://api.openai.com/v1"


@frozen
class TimeoutSettings:
    """Time limits of upstream calls, in seconds; 0 = none."""

    connect_s: float = 10
    first_byte_s: float = 600
    idle_s: float = 300
    total_s: float = 3600

    def __post_init__(self) -> None:
        at_least(self, 0, "connect_s", "first_byte_s", "idle_s", "total_s")


@frozen
class UpstreamSettings:
    """The provider that serves every model name without a deployment.

    `provider_prefixes`: whether names such as `anthropic/...` choose a provider. None: at OpenAI's
    own host, where no name has a prefix, and only while no gateway keys exist, because whoever may
    name providers may use every credential in the gateway's environment; any other upstream gets
    every name unchanged. `messages_api_base`: of `/v1/messages`; None: Anthropic's API if
    `api_base` is OpenAI's, else `api_base`. `chatgpt_api_base`, `gemini_api_base`,
    `vertex_api_base` and `bedrock_api_base`: of the clients that bring a credential of that
    provider; None: Vertex AI's host for the location in the path, Bedrock's for `AWS_REGION`.
    `cloud_credentials`: whether their requests without one get the gateway's own; None: at hosts of
    these clouds, while no gateway keys exist."""

    api_base: str = OPENAI_API_BASE
    api_key: Secret | None = None
    provider_prefixes: bool | None = None
    messages_api_base: str | None = None
    chatgpt_api_base: str = "https://chatgpt.com/backend-api"
    gemini_api_base: str = "https://generativelanguage.googleapis.com"
    vertex_api_base: str | None = None
    bedrock_api_base: str | None = None
    cloud_credentials: bool | None = None

    def __post_init__(self) -> None:
        for name, base in self.bases().items():
            http_url(base, name)

    def bases(self) -> dict[str, str]:
        """The base URLs that are set, by the names of their settings."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("api_base")}
        return {name: base for name, base in named.items() if base is not None}


@frozen
class Deployment:
    """One entry of `model_list`: a deployment that serves a requested model name. `dialects`: the
    dialects that the upstream speaks, if not the default (`chat` and `responses` for OpenAI's API,
    `messages` for Anthropic's); requests in any other are translated by LiteLLM."""

    model_name: str
    litellm_params: Fields
    lane: Lane = "auto"
    weight: float = 1
    forward_client_key: bool = False
    dialects: "tuple[DialectName, ...] | None" = None
    model_info: Fields = field(default_factory=dict)

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
        for part in ("litellm_params", "model_info"):
            for name, value in getattr(self, part).items():
                if _PRICE_KEY.match(name) and not _PRICE.fullmatch(str(value)):
                    raise ValueError(f"{part}.{name}: expected US dollars, 0 or more, got {value}")


# Prices in LiteLLM's form; YAML reads `1e-6` as text, and a null is none.
_PRICE_KEY = re.compile(r"(input|output|cache)_\w*cost")
_PRICE = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|None", re.IGNORECASE)


@frozen
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


@frozen
class LoggingSettings:
    """Log lines: level, and JSON for machines or coloured text for a terminal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


@frozen
class KeyRights:
    """Limits of a gateway key, with `*` and `?`: routes below `/v1` (`/chat/*`), and
    models by the names that clients ask for."""

    routes: tuple[str, ...] = ("*",)
    models: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        for route in self.routes:
            if route != "*" and (not route.startswith("/") or route.startswith("/v1/")):
                raise ValueError(f"routes: {route!r} is not a path below /v1, such as /embeddings")


@frozen
class AuthSettings:
    """Keys that requests must send; without any, none is required on loopback. `rights`: each that
    applies holds. `wrong_keys_per_minute`: beyond it a right key that is short enough to be guessed
    is refused, too, until the minute is over."""

    gateway_keys: Mapping[str, Secret] = field(default_factory=dict)
    provider_resources: tuple[str, ...] = ()
    rights: Mapping[str, KeyRights] = field(default_factory=dict)
    admin_key: Secret | None = None
    wrong_keys_per_minute: int = 30
    poll_s: float = 1
    stale_s: float = 3600

    def __post_init__(self) -> None:
        if empty := [name for name, key in self.gateway_keys.items() if not key]:
            raise ValueError(f"gateway_keys.{empty[0]}: may not be empty")
        above_zero(self, "poll_s")
        at_least(self, 0, "stale_s", "wrong_keys_per_minute")


@frozen
class SteeringSettings(ActSettings):
    """Whether requests are steered, how long that may take, and how much memory it may use.

    What decides about a call is in `ActSettings`. `deadline_ms`: of the request's own turns on the
    loop. `max_wait_ms`: from its first step until it is forwarded, all waits included.
    `max_body_mb`: without the beginning that is known from the call before; a body with so many
    values that reading it would stop all else is forwarded unsteered, too (`gateway.wire.parsing`).
    `max_transcript_memory_mb`: 0.2 MiB for thirty steps, 1 MiB for a thousand. `stream_usage`: the
    chunk that `stream_options.include_usage` adds for us is removed again; tokens that are not
    reported are estimated."""

    mode: Mode = "on"
    deadline_ms: float = 50
    max_wait_ms: float = 5000
    max_at_once: int = 16
    max_body_mb: float = 10
    stream_usage: Literal["auto", "always", "never"] = "always"
    max_conversations_in_memory: int = 2000
    max_transcripts_in_memory: int = 1000
    max_transcript_memory_mb: float = 128
    max_prefix_memory_mb: float = 32

    def __post_init__(self) -> None:
        above_zero(self, "deadline_ms", "max_wait_ms", "max_body_mb")
        ActSettings.__post_init__(self)
        at_least(self, 1, "max_at_once", "max_conversations_in_memory", "max_transcripts_in_memory")
        at_least(self, 0, "max_transcript_memory_mb", "max_prefix_memory_mb")


@frozen
class Settings:
    """All settings of a gateway."""

    preset: PresetName = "default"
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
    learning: LearningSettings = field(default_factory=LearningSettings)
    reader: ReaderSettings = field(default_factory=ReaderSettings)
    budgets: tuple[BudgetSettings, ...] = ()
    control: ControlSettings = field(default_factory=ControlSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    observability: ObservabilitySettings = field(default_factory=ObservabilitySettings)
    otel: OtelSettings = field(default_factory=OtelSettings)

    def __post_init__(self) -> None:
        check_budgets(self.budgets)
        self.routes()
        self.policy()
        self.judge_limit_s()

    def routes(self) -> Routes:
        """The two routing maps as one value. Raises ValueError for an unknown state."""
        return Routes(by_state=self.model_routing, by_model=self.model_routing_by_model)

    def rules(self) -> SteeringRules:
        """Everything that decides about a call. Raises ValueError for a value without meaning."""
        kept = self.storage.store_content
        return SteeringRules(
            policy=self.policy(),
            routes=self.routes(),
            routing=self.routing,
            acting=self.steering,
            on_trouble=self.control.on_trouble,
            etraces=self.etraces,
            # Guidance is stored, to be sent again: it must not hold what may not be stored.
            injection=self.injection if kept else replace(self.injection, quotes=False),
            lessons=self.learning.rules(),
        )

    def all_budgets(self) -> tuple[BudgetSettings, ...]:
        """The budgets, with the one that `steering.token_budget` sets."""
        steering = self.steering
        if steering.token_budget is None:
            return self.budgets
        wraps_up = steering.budget_action == "wrap_up"
        return (*self.budgets, token_budget(steering.token_budget, wraps_up=wraps_up))

    def judge_limit_s(self) -> float | None:
        """Longest wait for a judged score, in seconds; None when no model judges. Raises
        ValueError: no model is named, or it would have too little time."""
        if self.difficulty.scorer != "judge":
            return None
        return self.difficulty.judge.limit_s(self.steering.deadline_ms)

    @property
    def shares_store(self) -> bool:
        """Whether other processes serve on the same store at the same time."""
        return self.storage.shared or self.server.workers > 1

    def policy(self) -> Policy:
        """The policy of the decision core."""
        return Policy(
            fsm=self.fsm,
            difficulty=self.difficulty.load(),
            monitors=self.monitors,
            run_boundary=cast(RunBoundary, self.conversations.run_boundary),
        )


def named_models(settings: Settings) -> Iterator[tuple[str, str]]:
    """(key path, model name) of every model that a setting names outside of the list."""
    for state, model in settings.model_routing.items():
        yield f"model_routing.{state}", model
    for requested, states in settings.model_routing_by_model.items():
        for state, model in states.items():
            yield f"model_routing_by_model.{requested}.{state}", model
    for index, entry in enumerate(settings.router.fallbacks):
        for requested, models in entry.items():
            for model in models:
                yield f"router.fallbacks[{index}].{requested}", model
    if settings.difficulty.scorer == "judge":
        yield "difficulty.judge.model", settings.difficulty.judge.model
    if settings.reader.model:
        yield "reader.model", settings.reader.model
    for index, budget in enumerate(settings.budgets):
        for step, each in enumerate(budget.ladder):
            if each.cheaper:
                yield f"budgets[{index}].ladder[{step}].cheaper", each.cheaper
