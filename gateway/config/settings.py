"""The tree of settings: sections, defaults and limits; and the presets.

`config.yaml` documents every key with its unit; the docstrings add what its lines cannot hold. A
preset takes the place of defaults. A value of the file that is not the default, and any value of
the environment, wins over the preset's: a file may name every key, as `config.yaml` does."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from gateway.config.auth import AuthSettings
from gateway.config.control import ControlSettings
from gateway.config.embedding import EmbeddingSettings
from gateway.config.judge import ScorerSettings
from gateway.config.observability import OtelSettings
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
from gateway.core.decision_settings import Policy, RunBoundary
from gateway.core.fsm import FSMSettings
from gateway.core.guidance_settings import EtraceSettings, InjectionSettings
from gateway.core.monitors import MonitorSettings
from gateway.core.routing import Routes, RoutingSettings
from gateway.core.scoring.scorer import DifficultySettings
from gateway.data_files import read_toml
from gateway.hooks import given, named
from gateway.steering.experiments import ExperimentSettings
from gateway.steering.identity import ConversationSettings
from gateway.values import FieldDict, Fields, T, Texts, frozen

PresetName = Literal["default", "seeds"]

# Values of the preset `seeds`; its file names their sources.
SEEDS: Fields = read_toml(__package__, "seeds.toml")


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
    """Address of the gateway and limits of requests."""

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0 for all
    port: int = 8080  # 0 = any free port
    # processes that serve on this address, on one store; each limit below is that of one worker
    # (docs/speed.md)
    workers: int = 1
    # Host headers answered without keys, besides loopback names; *.domain, or * = any
    # (docs/security.md)
    trusted_hosts: tuple[str, ...] = ("host.docker.internal", "host.containers.internal")
    # web pages that may call /v1, as the Origin header names them: a `*` in place of the port or,
    # except for http and https, of the host stands for any. `null` is the origin of any page in a
    # sandbox, and counts only where a key is required.
    trusted_origins: tuple[str, ...] = ()
    max_head_kb: float = 64  # larger request heads are refused with 431; KiB
    max_head_fields: int = 100  # header fields of one request; more are refused with 431
    # requests that one connection may send before it has the answers
    max_pipelined_requests: int = 16
    max_head_s: float = 10  # time in which a request head has to arrive; seconds
    # how long a connection may be silent before or within a request; seconds, above the 60 of
    # common load balancers
    keep_alive_s: float = 75
    max_body_mb: float = 64  # larger request bodies are refused with 413; MiB
    # seconds in which a body has to arrive; a client that needs longer has to send 16 KiB in each
    # further second, or it would hold its room for ever
    max_body_s: float = 60
    max_buffered_response_mb: float = 32  # larger responses are relayed without being read; MiB
    max_concurrent_requests: int = 0  # further requests get 429 with retry-after; 0 = no limit
    # MiB of bodies, messages and answers at one time; 0 = no limit. A body is held to the end of
    # its request, and takes four times its size in memory while it is parsed and sent (measured:
    # six of 60 MiB 1,430 MiB).
    max_bytes_in_flight_mb: float = 64
    body_wait_s: float = 30  # seconds a body waits for room before it gets 503 with retry-after
    # a comment is sent into a stream after this much silence; seconds, 0 = never
    sse_keepalive_s: float = 0
    drain_s: float = 30  # time that running requests get after SIGTERM; seconds, 0 = none

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s/:]+|[^/:]*:[^/:]*:[^/]*", self.host):  # a name or an address
            raise ValueError(
                f"host: {self.host!r}: leave out scheme, port and path; 0.0.0.0 listens on all"
            )
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: must be 0 to 65535, got {self.port}")
        above_zero(self, "max_body_mb", "max_buffered_response_mb", "max_head_kb", "max_head_s")
        above_zero(self, "keep_alive_s", "max_body_s")
        at_least(self, 1, "workers", "max_head_fields", "max_pipelined_requests")
        at_least(self, 0, "max_concurrent_requests", "max_bytes_in_flight_mb")
        at_least(self, 0, "sse_keepalive_s", "drain_s", "body_wait_s")
        for host in self.trusted_hosts:
            host_pattern(host)
        for origin in self.trusted_origins:
            origin_pattern(origin)


Lane = Literal["auto", "native", "litellm"]
if TYPE_CHECKING:
    from gateway.core.steer import SteeringRules


def dialect_name() -> Any:
    """The type of a dialect's name. Only deployments need the dialects: to import them takes a
    tenth of a short command's time."""
    from gateway.dialects import DIALECTS

    return Literal[tuple(DIALECTS)]


OPENAI_API_BASE = "https://api.openai.com/v1"


@frozen
class TimeoutSettings:
    """Time limits of upstream calls, in seconds; 0 = none."""

    connect_s: float = 10  # seconds until the connection is open
    first_byte_s: float = 600  # seconds until the response headers arrive
    idle_s: float = 300  # seconds between two chunks of the response
    total_s: float = 3600  # seconds for the whole call

    def __post_init__(self) -> None:
        at_least(self, 0, "connect_s", "first_byte_s", "idle_s", "total_s")


@frozen
class UpstreamSettings:
    """The provider that serves every model name without a deployment."""

    api_base: str = OPENAI_API_BASE  # including the version, as in OpenAI's clients
    api_key: Secret | None = None  # sent instead of the client's key; None = forward the client's
    # names such as `anthropic/...` choose a provider. None: at OpenAI's own host, where no name has
    # a prefix, and only while no gateway keys exist, because whoever may name providers may use
    # every credential in the gateway's environment; any other upstream gets every name unchanged.
    provider_prefixes: bool | None = None
    # where /v1/messages goes; None = Anthropic's API if `api_base` is OpenAI's, else `api_base`
    messages_api_base: str | None = None
    chatgpt_api_base: str = "https://chatgpt.com/backend-api"  # of Codex with a ChatGPT login
    # of GitHub Copilot; another plan or company has a host of its own
    copilot_api_base: str = "https://api.githubcopilot.com"
    # of Gemini CLI with a Google account (Code Assist), without a version
    code_assist_api_base: str = "https://cloudcode-pa.googleapis.com"
    # of the Gemini API, without a version
    gemini_api_base: str = "https://generativelanguage.googleapis.com"
    # of Vertex AI; None = Google's host for the location in the path
    vertex_api_base: str | None = None
    # of Amazon Bedrock; None = AWS's host for the region of the model's ARN or of the signature,
    # else of AWS_REGION
    bedrock_api_base: str | None = None
    # requests to Google and AWS without a credential get the gateway's own; None: at hosts of these
    # clouds, while no gateway keys exist
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
    """One entry of `model_list`: a deployment that serves a requested model name."""

    model_name: str  # what clients ask for; entries of one name share the load
    litellm_params: Fields  # the model and how to reach it; other keys are added to the request
    lane: Lane = "auto"  # native = bytes unchanged, litellm = translated, auto = chosen by provider
    weight: float = 1  # share among the entries of one name
    forward_client_key: bool = False  # the client's own key is sent to this deployment
    # APIs that the upstream speaks itself; None = `chat` and `responses` for OpenAI's API,
    # `messages` for Anthropic's; requests in any other are translated by LiteLLM
    dialects: "tuple[dialect_name(), ...] | None" = None  # type: ignore[valid-type]
    # capabilities and prices that LiteLLM's list lacks
    model_info: Fields = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ValueError("model_name: may not be empty")
        if not isinstance(self.litellm_params.get("model"), str):
            raise ValueError("litellm_params.model: required")
        for name in ("api_base", "base_url"):
            if url := self.litellm_params.get(name):
                http_url(str(url), f"litellm_params.{name}")
        at_least(self, 0, "weight")
        for part in ("litellm_params", "model_info"):
            for name, value in getattr(self, part).items():
                if _NO_NUMBER.match(f"{name}={value}"):
                    raise ValueError(f"{part}.{name}: expected a number, 0 or more, got {value}")


# A weight, or a price in LiteLLM's form, that is no number from 0 on; YAML reads `1e-6` as text,
# and a price of null is none.
_NUMBER = r"(\d{1,20}\.?\d*|\.\d+)(e[+-]?\d{1,2})?"
_NO_NUMBER = re.compile(
    rf"weight=(?!{_NUMBER}$)|(input|output|cache)_\w*cost\w*=(?!({_NUMBER}|None)$)", re.IGNORECASE
)


@frozen
class RouterSettings:
    """Retries, fallbacks and balancing for failures before the first byte; times in seconds."""

    # further attempts at the name's deployments, after no answer, 408, 425, 429 and 5xx but 501 and
    # 505
    num_retries: int = 2
    backoff_s: float = 0.25  # pause before the first retry, doubled for each further one; seconds
    max_retry_after_s: float = 5  # longest retry-after that is honoured; seconds
    cooldown_s: float = 5  # how long a deployment that failed too often is not used; seconds
    allowed_fails: int = 3  # consecutive failures after which it is not used
    max_connections: int = 1000  # to all upstreams in total; 0 = no limit
    # names to try after the requested one: [{big: [small, other]}]; "*" = any name;
    # "context_window:big" = when a request is too long for it, "content_policy:big" = when its
    # content is not allowed
    fallbacks: tuple[Mapping[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        at_least(self, 0, "num_retries", "backoff_s", "max_retry_after_s", "cooldown_s")
        at_least(self, 1, "allowed_fails")
        at_least(self, 0, "max_connections")


@frozen
class LoggingSettings:
    """Log lines: level, and JSON for machines or coloured text for a terminal."""

    # debug, info, warning or error; content is never logged at info
    level: Literal["debug", "info", "warning", "error"] = "info"
    # json, console, or auto = console in a terminal, json elsewhere
    format: Literal["auto", "json", "console"] = "auto"


@frozen
class SteeringSettings(ActSettings):
    """Whether requests are steered, how long that may take, and how much memory it may use.
    `ActSettings` holds what decides about a call."""

    mode: Mode = "on"  # on; shadow = computed and recorded, no byte changed; off = only recorded
    # milliseconds of the request's own turns on the loop; a request that takes longer is forwarded
    # without a decision
    deadline_ms: float = 50
    # milliseconds from its first step until it is forwarded, all waits included
    max_wait_ms: float = 5000
    # requests steered at one time; the others wait for their turn, in order of arrival
    max_at_once: int = 16
    # MiB without the beginning that is known from the call before; more is forwarded unread, and so
    # is a body with so many values that reading it would stop all else (`gateway.wire.parsing`)
    max_new_mb: float = 10
    # in mode on, request token usage for streams: always, auto = if a decision needs it, never; the
    # chunk that this adds is removed again, and tokens that are not reported are estimated
    stream_usage: Literal["auto", "always", "never"] = "always"
    max_conversations_in_memory: int = 2000  # others are read from the store
    max_transcripts_in_memory: int = 1000  # of those, how many keep what was read of their history
    # MiB, about: 0.2 for thirty steps, 1 for a thousand; an agent beyond is read again with each
    # call
    max_transcript_memory_mb: float = 128
    # bytes of latest requests, to recognise the next one by its beginning; MiB
    max_prefix_memory_mb: float = 32

    def __post_init__(self) -> None:
        above_zero(self, "deadline_ms", "max_wait_ms", "max_new_mb")
        ActSettings.__post_init__(self)
        at_least(self, 1, "max_at_once", "max_conversations_in_memory", "max_transcripts_in_memory")
        at_least(self, 0, "max_transcript_memory_mb", "max_prefix_memory_mb")


_OF_FEATURES = named("settings")
_KEYS = {section: key for key, section in _OF_FEATURES.items()}
if TYPE_CHECKING:
    _Sections = object
    _Auth = AuthSettings
    _Control = ControlSettings
else:
    _ADDED = named("adds")
    _Auth = _ADDED.get("auth", AuthSettings)
    _Control = _ADDED.get("control", ControlSettings)
    _Sections = make_dataclass(
        "_Sections",
        [(key, kind, kind()) for key, kind in _OF_FEATURES.items()],
        frozen=True,
        slots=True,
        kw_only=True,
    )


@frozen
class Settings(_Sections):
    """All settings of a gateway."""

    preset: PresetName = "default"  # seeds = the published formulas and values (docs/names.md)
    # address, and limits of requests
    server: ServerSettings = ServerSettings()
    timeouts: TimeoutSettings = TimeoutSettings()  # of upstream calls
    # serves every model name without an entry in `model_list`
    default_upstream: UpstreamSettings = UpstreamSettings()
    model_list: tuple[Deployment, ...] = ()  # what requested model names map to, in LiteLLM's form
    # retries and fallbacks, for failures before the first byte
    router: RouterSettings = RouterSettings()
    logging: LoggingSettings = LoggingSettings()  # level and form of log lines
    auth: _Auth = _Auth()  # keys that requests must send
    # mode, deadlines and memory
    steering: SteeringSettings = SteeringSettings()
    # how requests are grouped into conversations and runs
    conversations: ConversationSettings = ConversationSettings()
    difficulty: ScorerSettings = ScorerSettings()  # scorer of a step
    fsm: FSMSettings = FSMSettings()  # thresholds and windows over the scores
    # detectors of trouble in a run's steps
    monitors: MonitorSettings = MonitorSettings()
    # model by difficulty state; a missing state keeps the requested model
    model_routing: Texts = field(default_factory=dict)
    # the same for single requested names; replaces `model_routing`
    model_routing_by_model: Mapping[str, Texts] = field(default_factory=dict)
    # how a model is chosen among these
    routing: RoutingSettings = RoutingSettings()
    etraces: EtraceSettings = EtraceSettings()  # guidance from patterns
    # what is injected into requests, and where
    injection: InjectionSettings = InjectionSettings()
    # turns text into vectors for the look-ups
    embedding: EmbeddingSettings = EmbeddingSettings()
    # the running one; at most one
    experiment: ExperimentSettings = ExperimentSettings()
    storage: StorageSettings = StorageSettings()  # where runs are stored
    # stopping and pausing runs
    control: _Control = _Control()
    otel: OtelSettings = OtelSettings()  # texts in OpenTelemetry's spans

    def __post_init__(self) -> None:
        for check in given("check"):
            check(self)
        self.routes()
        self.policy()
        self.judge_limit_s()

    def of(self, section: type[T]) -> T:
        """The section of a feature, by its class."""
        found: T = getattr(self, _KEYS[section])
        return found

    def routes(self) -> Routes:
        """The two routing maps as one value. Raises ValueError for an unknown state."""
        return Routes(by_state=self.model_routing, by_model=self.model_routing_by_model)

    def rules(self) -> "SteeringRules":
        """Everything that decides about a call. Raises ValueError for a value without meaning."""
        # What reads steps is a fifth of what a short command would import.
        from gateway.core.steer import SteeringRules
        from gateway.steering.guidance.situation import READER

        kept = self.storage.store_content
        return SteeringRules(
            reader=READER,
            policy=self.policy(),
            routes=self.routes(),
            routing=self.routing,
            acting=self.steering,
            on_trouble=self.control.on_trouble,
            etraces=self.etraces,
            # Guidance is stored, to be sent again: it must not hold what may not be stored.
            injection=self.injection if kept else replace(self.injection, quotes=False),
            lessons=next((rules(self) for rules in given("lesson_rules")), None),
        )

    def judge_limit_s(self) -> float | None:
        """Longest wait for a judged score, in seconds; None when no model judges. Raises
        ValueError: no model is named, or it would have too little time."""
        if self.difficulty.scorer != "judge":
            return None
        return self.difficulty.judge.limit_s(self.steering.deadline_ms)

    def policy(self) -> Policy:
        """The policy of the decision core."""
        return Policy(
            fsm=self.fsm,
            difficulty=DifficultySettings(scorer=self.difficulty.scorer),
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
    for key in _OF_FEATURES:
        found: Texts = getattr(getattr(settings, key), "named_models", dict)()
        yield from ((f"{key}.{name}", model) for name, model in found.items())
    for models_of in given("named_models"):
        yield from models_of(settings)
