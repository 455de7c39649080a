"""Requested model name -> the targets that may serve it, in the order to try them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from gateway.config import OPENAI_API_BASE, Deployment, Settings
from gateway.upstream.patterns import filled, longest_match
from gateway.upstream.providers import (
    ANTHROPIC_API_BASE,
    ANTHROPIC_KEY_VARIABLES,
    DIALECTS,
    FOREIGN_WIRE,
    OPENAI_WIRE,
    provider_of,
    split_model,
)

# Of `litellm_params`, those that say where and how to call, not what to send.
_TRANSPORT_PARAMS = frozenset(
    {"model", "api_base", "api_key", "base_url", "custom_llm_provider", "timeout", "stream_timeout"}
    | {"rpm", "tpm", "max_retries", "num_retries", "weight", "order", "tags", "organization"}
    | {"input_cost_per_token", "output_cost_per_token", "max_parallel_requests", "extra_headers"}
    | {
        "drop_params",
        "allowed_openai_params",
        "additional_drop_params",
        "model_info",
        "mock_response",
    }
)


_MATCHES_KEPT = 1000  # names that patterns fitted: clients choose them, so there must be an end
_OAUTH_PREFIX = "sk-ant-oat"  # a token of a subscription, which goes where tokens go


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One place to send a request to."""

    name: str
    """The deployment's `model_name`, or `default`: a closed label for metrics."""

    lane: Literal["native", "litellm"]
    model: str | None
    """The model to ask for; None leaves the client's own."""

    api_base: httpx.URL
    api_key: str | None = None
    forward_client_key: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    key: int = 0
    """Tells deployments of one name apart."""

    weight: float = 1
    provider: str = "openai"
    dialects: frozenset[str] = frozenset(DIALECTS)
    """The dialects that the upstream itself speaks."""

    messages_base: httpx.URL | None = None
    """Where the upstream speaks Messages, when that is not `api_base`."""

    foreign: Mapping[str, Any] = field(default_factory=dict)
    """All `litellm_params`: how LiteLLM reaches the upstream."""

    key_header: Literal["authorization", "x-api-key"] = "authorization"
    """What carries `api_key`."""

    def for_dialect(self, dialect: str) -> Target:
        """The same place, asked in one of DIALECTS, or in "" for what is no dialect."""
        if dialect in self.dialects:
            return self if dialect != "messages" else self._for_messages()
        if not dialect or self.lane == "litellm":
            return self
        return replace(self, lane="litellm", params=self.foreign)

    def _for_messages(self) -> Target:
        key = self.api_key or ""
        base = self.messages_base or self.api_base
        anthropic = self.provider == "anthropic" or base.host.endswith("anthropic.com")
        by_name = anthropic and not key.startswith(_OAUTH_PREFIX)
        return replace(
            self,
            lane="native",
            api_base=base,
            params=self.params if self.lane == "native" else {},
            key_header="x-api-key" if by_name else "authorization",
        )


class DeploymentTable:
    """All targets of the settings, balanced by weight, cooled down after failures."""

    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        self._env = env
        self._settings = settings
        self._client_host = urlsplit(settings.default_upstream.api_base).netloc
        self._messages_base = _default_messages_base(settings)
        self._by_name: dict[str, list[Target]] = {}
        self._patterns: dict[str, list[tuple[int, Deployment]]] = {}
        self._matched: dict[str, list[Target]] = {}
        for key, deployment in enumerate(settings.model_list, start=1):
            target = self._target(deployment, key)
            self._by_name.setdefault(deployment.model_name, []).append(target)
            if "*" in deployment.model_name:
                self._patterns.setdefault(deployment.model_name, []).append((key, deployment))
        self.default = Target(
            name="default",
            lane="native",
            model=None,
            api_base=httpx.URL(settings.default_upstream.api_base.rstrip("/")),
            api_key=settings.default_upstream.api_key,
            forward_client_key=True,
            messages_base=self._messages_base,
        )
        self._fallbacks = {
            name: models for entry in settings.router.fallbacks for name, models in entry.items()
        }
        self._turn = itertools.count()
        self._failures: dict[int, int] = {}
        self._resting_until: dict[int, float] = {}

    @property
    def names(self) -> list[str]:
        """The configured model names, in the order of the config."""
        return list(self._by_name)

    @property
    def needs_litellm(self) -> bool:
        """Whether any configured target is not native."""
        return any(t.lane == "litellm" for ts in self._by_name.values() for t in ts)

    def targets(self) -> Iterator[Target]:
        """Every target, the default one last."""
        for group in self._by_name.values():
            yield from group
        yield self.default

    def candidates(self, model: str, now: float) -> list[Target]:
        """The targets for `model`, best first: its own deployments, then its fallbacks'."""
        order = list(self._balanced(model, now))
        for name in self._fallbacks.get(model, self._fallbacks.get("*", ())):
            if name != model:
                order += self._balanced(name, now)
        return order

    def resolve(self, model: str) -> list[Target]:
        """The deployments behind one name; an unknown name has the default upstream."""
        known = self._by_name.get(model)
        if known:
            return known
        return (self._patterns and self._by_pattern(model)) or [self._unlisted(model)]

    def _by_pattern(self, model: str) -> list[Target]:
        """The deployments of the longest pattern that fits; none when none does."""
        found = self._matched.get(model)
        if found is None:
            name, starred = longest_match(self._patterns, model) or ("", "")
            entries = self._patterns.get(name, ())
            found = [self._target(filled(d, starred), key) for key, d in entries]
            if len(self._matched) >= _MATCHES_KEPT:
                self._matched.clear()
            self._matched[model] = found
        return found

    def failed(self, target: Target, now: float) -> None:
        """Count a failure; after `router.allowed_fails` in a row the target rests."""
        count = self._failures.get(target.key, 0) + 1
        self._failures[target.key] = count
        if count >= self._settings.router.allowed_fails:
            self._resting_until[target.key] = now + self._settings.router.cooldown_s
            self._failures[target.key] = 0

    def succeeded(self, target: Target) -> None:
        """Forget the failures of a target."""
        if self._failures:
            self._failures.pop(target.key, None)

    def _balanced(self, model: str, now: float) -> list[Target]:
        group = self.resolve(model)
        if len(group) == 1:
            return group
        awake = [t for t in group if self._resting_until.get(t.key, 0.0) <= now]
        resting = [t for t in group if t not in awake]
        slots = [t for t in awake or group for _ in range(max(1, round(t.weight)))]
        first = slots[next(self._turn) % len(slots)]
        return [first, *(t for t in awake or group if t is not first), *(resting if awake else [])]

    def _unlisted(self, model: str) -> Target:
        provider, name = split_model(model)
        if provider is None or not self._settings.default_upstream.provider_prefixes:
            return self.default
        params: dict[str, Any] = {"model": f"{provider}/{name}"}
        return self._target(Deployment(model_name="prefixed", litellm_params=params), 0)

    def _target(self, deployment: Deployment, key: int) -> Target:
        params = deployment.litellm_params
        provider, name = provider_of(params)
        known = OPENAI_WIRE.get(provider)
        given = params.get("api_base") or params.get("base_url")
        base = given or (known and known.api_base)
        lane = deployment.lane
        if lane == "auto":
            lane = "native" if known and base and not params.get("mock_response") else "litellm"
        if lane == "native" and not base:
            raise ValueError(
                f"model_list: {deployment.model_name!r} takes the native lane and has no api_base"
            )
        extra = {k: v for k, v in params.items() if k not in _TRANSPORT_PARAMS}
        messages_base = _versioned(str(given or ANTHROPIC_API_BASE))
        same_host = bool(base) and urlsplit(str(base)).netloc == self._client_host
        dialects = _dialects(deployment, provider, lane)
        if "messages" in dialects and provider == "anthropic":
            same_host = messages_base.netloc == self._messages_base.netloc
        return Target(
            name=deployment.model_name,
            lane="native" if lane == "native" else "litellm",
            model=name,
            api_base=httpx.URL(str(base or "http://litellm.invalid").rstrip("/")),
            api_key=self._key(provider, params),
            forward_client_key=deployment.forward_client_key
            or (same_host and (lane == "native" or "messages" in dialects)),
            headers=_headers(params),
            params=dict(params) if lane == "litellm" else extra,
            key=key,
            weight=float(params.get("weight", deployment.weight)),
            provider=provider if provider in OPENAI_WIRE or provider in FOREIGN_WIRE else "other",
            dialects=dialects,
            messages_base=messages_base,
            foreign=dict(params),
        )

    def _key(self, provider: str, params: Mapping[str, Any]) -> str | None:
        if params.get("api_key"):
            return str(params["api_key"])
        known = OPENAI_WIRE.get(provider)
        variables = known.key_variables if known else ()
        if provider == "anthropic":
            variables = ANTHROPIC_KEY_VARIABLES
        # A base of the operator's own gets no key that was meant for the provider itself.
        if not (params.get("api_base") or params.get("base_url")):
            return next((self._env[n] for n in variables if self._env.get(n)), None)
        return None


def _headers(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    made = dict(params.get("extra_headers") or {})
    if params.get("organization"):
        made = {"openai-organization": params["organization"], **made}
    return tuple((str(k), str(v)) for k, v in made.items())


def _dialects(deployment: Deployment, provider: str, lane: str) -> frozenset[str]:
    """What the upstream of a deployment speaks itself."""
    if deployment.lane == "litellm" or deployment.litellm_params.get("mock_response"):
        return frozenset()
    if deployment.dialects is not None:
        return frozenset(deployment.dialects)
    if provider == "anthropic":
        return frozenset({"messages"})
    return frozenset({"chat", "responses"}) if lane == "native" else frozenset()


def _versioned(base: str) -> httpx.URL:
    """A base URL with the version that Anthropic's clients add themselves."""
    base = base.rstrip("/")
    return httpx.URL(base if base.endswith("/v1") else f"{base}/v1")


def _default_messages_base(settings: Settings) -> httpx.URL:
    upstream = settings.default_upstream
    if upstream.messages_api_base:
        return _versioned(upstream.messages_api_base)
    base = upstream.api_base.rstrip("/")
    return _versioned(ANTHROPIC_API_BASE) if base == OPENAI_API_BASE else httpx.URL(base)
