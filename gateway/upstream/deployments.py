"""Requested model names to the targets that may serve them, in the order of attempts.

Deployments that failed repeatedly are not asked for a while (`DeploymentRests`)."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from gateway.config import OPENAI_API_BASE, Deployment, Settings
from gateway.config.base_url import BaseURL, base_url
from gateway.config.settings import named_models
from gateway.config.values import Faults, Secret
from gateway.dialects import DIALECTS, Dialect
from gateway.errors import ConfigError, UnknownProvider
from gateway.upstream import providers
from gateway.upstream.litellm_package import WITHOUT_LITELLM, can_translate
from gateway.upstream.seats import Seat, Seats
from gateway.values import Fields, Texts, Value


class DeploymentRests:
    """Failures in a row and rests, by the place of a deployment (`place_of`). One object serves all
    versions of the config: a deployment that a reload leaves as it was goes on resting, and
    requests that began before the reload still count."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, place: str, now: float, *, allowed: int, rest_s: float) -> bool:
        """Count a failure at `now` in seconds; the `allowed`th in a row begins a rest: True."""
        count = self._failures.get(place, 0) + 1
        if count < allowed:
            self._failures[place] = count
            return False
        self._failures.pop(place, None)
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[place] = now + rest_s
        return True

    def succeeded(self, place: str) -> None:
        """Forget the failures of a place."""
        if self._failures:
            self._failures.pop(place, None)

    def is_resting(self, place: str, now: float) -> bool:
        """Whether a place is not to be asked at `now`, in the seconds of `failed`."""
        return self._until.get(place, now) > now


def place_of(deployment: Deployment, api_key: str | None) -> str:
    """Digest of a deployment that is equal while its address, model and key are the same. All texts
    of its `litellm_params` count, because regions, projects and API versions are part of an
    address; its name, weight and the numbers among the parameters do not."""
    params = deployment.litellm_params
    texts = {name: value for name, value in params.items() if isinstance(value, str)}
    described = json.dumps(
        [texts, params.get("extra_headers"), api_key], sort_keys=True, default=str
    )
    return blake2b(described.encode("ascii"), digest_size=16).hexdigest()


_CREDENTIALS = frozenset({"api_key", "extra_headers", "organization"})


def longest_match(patterns: Iterable[str], model: str) -> tuple[str, str] | None:
    """(the longest pattern that matches `model`, the text of its first star), or None."""
    fitting = [(p, starred) for p in patterns if (starred := _star(p, model)) is not None]
    return max(fitting, key=lambda found: len(found[0]), default=None)


def filled(deployment: Deployment, starred: str) -> Deployment:
    """The deployment for one name that matches its pattern: the star in its model is replaced.
    Where the star covers the provider (`model: "*"`), the client chooses it: the deployment's
    secrets are those of the provider that the pattern itself names, and of no other. Raises:
    UnknownProvider: the client chose a provider that nobody knows."""
    params = deployment.litellm_params
    made = {**params, "model": str(params["model"]).replace("*", starred)}
    if providers.provider_of(made)[0] != providers.provider_of(params)[0]:
        made = {k: v for k, v in made.items() if k not in _CREDENTIALS and type(v) is not Secret}
    return dataclasses.replace(deployment, litellm_params=made)


def _star(pattern: str, model: str) -> str | None:
    """The longest text of the first star with which `pattern` is `model`, or None. Read from the
    right, so that a name with many chances to match costs one pass per star."""
    first, *middle, last = pattern.split("*")
    end = len(model) - len(last)
    if not model.startswith(first) or not model.endswith(last):
        return None
    for part in reversed(middle):
        if end >= len(first):
            end = model.rfind(part, len(first), end)
        else:
            end = -1
    if end >= len(first):
        return model[len(first) : end]
    return None


_TRANSPORT_PARAMS = frozenset(providers.TABLE["parameters"]["transport"].split())

_MATCHES_KEPT = 1000  # requested names that matched a pattern: clients choose them, hence a limit
_BOTH_APIS = frozenset({"openai", "anthropic"})
_OPENAI_DIALECTS = frozenset(name for name, each in DIALECTS.items() if each.api == "openai")
_ANTHROPIC_DIALECTS = frozenset(name for name, each in DIALECTS.items() if each.api == "anthropic")

_OAUTH_PREFIX = "sk-ant-oat"  # a subscription's token, which is sent as a bearer token


class Upstream(Value):
    """The address of a provider, its credentials and its dialects."""

    api_base: BaseURL  # with the version, such as `/v1`
    api_key: str | None = None  # the operator's; None: the client's own credential is used
    # the header that carries `api_key`
    key_header: Literal["authorization", "x-api-key", "x-goog-api-key"] = "authorization"
    client_apis: frozenset[str] = frozenset()  # whose clients' own credentials go to this host
    headers: tuple[tuple[str, str], ...] = ()  # sent with every request, names in lower case
    seat: str = ""  # the API of `gateway.upstream.seats` that the host serves; empty: none
    provider: str = "openai"  # such as `openai`; decides about prices and dialects
    # names of those that the upstream itself speaks
    dialects: frozenset[str] = _OPENAI_DIALECTS | _ANTHROPIC_DIALECTS

    # the base URL for dialects of Anthropic's API, when it is not `api_base`
    messages_base: BaseURL | None = None


class Target(Upstream):
    """One upstream and model to send a request to."""

    name: str  # the deployment's `model_name`, or `default`: a closed label for metrics
    lane: Literal["native", "litellm"]  # native = bytes are relayed; litellm = translated
    model: str | None  # the model to ask for; None leaves the client's own
    params: Mapping[str, Any] = {}  # of the deployment; set in the body of every request
    key: int = 0  # the deployment's number in `model_list`, from 1; 0 for the default upstream
    # digest of the deployment, the same on every gateway; empty for the default upstream
    place: str = ""
    weight: float = 1  # share of the name's conversations, relative to the others
    # the deployment's `litellm_params`: how LiteLLM reaches the upstream
    litellm_params: Mapping[str, Any] = {}

    def speaks(self, dialect: Dialect) -> bool:
        """Whether the upstream itself speaks a dialect."""
        return dialect.name in self.dialects

    def for_client(self, dialect: Dialect | None, api: str, seat: Seat | None = None) -> Target:
        """The same upstream as a client of an API is served; the default upstream is a host for
        each API."""
        if seat is not None and self.name == "default" and not self.key:
            return self._at_seat(seat)
        if dialect is None and api == "anthropic" and self.messages_base and not self.key:
            return self._at_anthropic_api()
        return self.for_dialect(dialect)

    def _at_seat(self, seat: Seat) -> Target:
        """The host of a seat, where the client's own credential goes and none of the operator's."""
        apis = frozenset({seat.api})
        return replace(
            self, lane="native", api_base=seat.base, api_key=None, client_apis=apis, seat=seat.api
        )

    def for_dialect(self, dialect: Dialect | None) -> Target:
        """The same upstream as it is asked in a dialect; None: on a route that has no dialect."""
        if dialect is None:
            return self
        if self.speaks(dialect):
            if dialect.api == "google":
                return self._at_google()
            if dialect.api == "anthropic":
                return self._at_anthropic_api()
            return self
        if self.lane == "litellm":
            return self
        return replace(self, lane="litellm", params=self.litellm_params)

    def translated(self, model: str) -> Target:
        """The same upstream asked for `model` in chat completions through LiteLLM. As the server of
        nobody's it gets no key of a provider's from the environment."""
        at = {"model": f"hosted_vllm/{self.model or model}", "api_base": self.api_base.text}
        params = {**self.litellm_params, **at}
        params.pop("custom_llm_provider", None)
        return replace(
            self, lane="litellm", params=params, litellm_params=params, dialects=_CHAT_ALONE
        )

    def _at_google(self) -> Target:
        """The same host as the Gemini API, whose version is in the client's path."""
        base = base_url(_VERSION.sub("", self.api_base.text))
        if self.lane == "native":
            params = self.params
        else:
            params = {}
        return replace(
            self, lane="native", api_base=base, params=params, key_header="x-goog-api-key"
        )

    def _at_anthropic_api(self) -> Target:
        """The upstream with the base URL and the key header of Anthropic's API."""
        base = self.messages_base or self.api_base
        # The default upstream's key is for its own host only.
        elsewhere = self.name == "default" and not self.key and base.netloc != self.api_base.netloc
        if elsewhere:
            key = ""
        else:
            key = self.api_key or ""
        anthropic = self.provider == "anthropic" or base.host.endswith("anthropic.com")
        own_header = anthropic and not key.startswith(_OAUTH_PREFIX)
        return replace(
            self,
            lane="native",
            api_base=base,
            api_key=key or None,
            params=self.params if self.lane == "native" else {},
            key_header="x-api-key" if own_header else "authorization",
        )


_CHAT_ALONE = frozenset({"chat"})
_VERSION = re.compile(r"/v1(?:alpha|beta)?/?$")


class _Targets:
    """Makes targets of deployments; `env` holds the providers' keys."""

    def __init__(self, settings: Settings, env: Texts):
        upstream = settings.default_upstream
        base = upstream.api_base.rstrip("/")
        if upstream.messages_api_base:
            messages_base = _versioned(upstream.messages_api_base)
        else:
            at_openai = base == OPENAI_API_BASE
            messages_base = (
                _versioned(providers.ANTHROPIC_API_BASE) if at_openai else base_url(base)
            )
        documented = providers.documented_dialects(urlsplit(base).hostname or "")
        self._env = env
        self._client_hosts = {
            "openai": urlsplit(base).netloc,
            "anthropic": messages_base.netloc,
            "google": urlsplit(upstream.gemini_api_base).netloc,
        }
        self.default = Target(
            name="default",
            lane="native",
            model=None,
            api_base=base_url(base),
            api_key=upstream.api_key,
            client_apis=_BOTH_APIS,
            messages_base=messages_base,
            dialects=(documented or _OPENAI_DIALECTS) | _ANTHROPIC_DIALECTS,
        )

    def of(self, deployment: Deployment, key: int) -> Target:
        """The target of a deployment; `key` 0: one that is not in the config. Raises:
        UnknownProvider; ValueError: the native lane needs an address."""
        params = deployment.litellm_params
        provider, name = providers.provider_of(params)
        known = providers.OPENAI_COMPATIBLE.get(provider)
        given = params.get("api_base") or params.get("base_url")
        if known:
            usual = known.api_base
        else:
            usual = {"gemini": providers.GEMINI_API_BASE}.get(provider)
        base = given or usual
        if (
            provider in providers.BASELESS
            and not base
            and not self._env.get(f"{provider.upper()}_API_BASE")
        ):
            raise UnknownProvider(f"{provider!r} in {params['model']!r} has no address of its own")
        lane = deployment.lane
        if lane == "auto":
            lane = "litellm"
            if known and base and not params.get("mock_response"):
                lane = "native"
        if lane == "native" and not base:
            raise ValueError(f"{deployment.model_name!r} takes the native lane and has no api_base")
        messages_base = _versioned(str(given or providers.ANTHROPIC_API_BASE))
        host = urlsplit(str(base)).hostname or ""
        documented = providers.documented_dialects(host, provider)
        dialects = _dialects(deployment, provider, lane, documented=documented)
        anthropic_api = any(DIALECTS[name].api == "anthropic" for name in dialects)
        if provider == "anthropic" and anthropic_api:
            own_api = "anthropic"
            host = messages_base.netloc
        else:
            own_api = "openai"
            if provider == "gemini":
                own_api = "google"
            host = urlsplit(str(base or "")).netloc
        own_host = bool(host) and host == self._client_hosts[own_api]
        api_key = self._key(provider, params)
        headers = {}
        if organization := params.get("organization"):
            headers["openai-organization"] = organization
        headers |= params.get("extra_headers") or {}
        spoken = lane == "native" or any(DIALECTS[name].api == own_api for name in dialects)
        apis = frozenset({own_api} if own_host and spoken else ())
        not_sent = _TRANSPORT_PARAMS if lane == "native" else ()
        return Target(
            name=deployment.model_name,
            lane=lane,
            model=name,
            api_base=base_url(str(base or "http://litellm.invalid").rstrip("/")),
            api_key=api_key,
            client_apis=_BOTH_APIS | {own_api} if deployment.forward_client_key else apis,
            headers=tuple((str(name), str(value)) for name, value in headers.items()),
            params={name: value for name, value in params.items() if name not in not_sent},
            key=key,
            place=place_of(deployment, api_key) if key else "",
            weight=float(params.get("weight", deployment.weight)),
            provider=provider if providers.is_known(provider) else "other",
            dialects=dialects,
            messages_base=messages_base,
            litellm_params=dict(params),
        )

    def _key(self, provider: str, params: Fields) -> str | None:
        if params.get("api_key"):
            return str(params["api_key"])
        # A configured base URL gets no key that is meant for the provider itself.
        if params.get("api_base") or params.get("base_url"):
            return None
        known = providers.OPENAI_COMPATIBLE.get(provider)
        if known:
            variables = known.key_variables
        else:
            variables = providers.KEY_VARIABLES.get(provider, ())
        return next((self._env[n] for n in variables if self._env.get(n)), None)


class DeploymentTable:
    """All targets of the settings, balanced by weight; one that fails repeatedly rests."""

    def __init__(
        self,
        settings: Settings,
        env: Texts,
        rests: DeploymentRests | None = None,
        keys_required: Callable[[], bool] = lambda: False,
    ):
        """Read the deployments; `env` holds the providers' keys, `rests` what failed before.
        `keys_required`: whether requests need a gateway key now, whatever the config says. Raises:
        ConfigError: deployments, or models named elsewhere, have no provider or no address."""
        self._settings = settings
        self._keys_required = keys_required
        self._targets = _Targets(settings, env)
        self.default = self._targets.default
        own = tuple(providers.TABLE["hosts"]["openai"])
        self._at_openai = f".{self.default.api_base.host}".endswith(own)
        self.seats = Seats(settings.default_upstream, env)
        self._by_name: dict[str, list[Target]] = {}
        self._by_pattern = lru_cache(_MATCHES_KEPT)(self._matched)
        self._rests = rests or DeploymentRests()
        self._turn = itertools.count()
        faults = Faults()
        for key, deployment in enumerate(settings.model_list, start=1):
            with faults.collected():
                target = self._configured(deployment, key)
                self._by_name.setdefault(deployment.model_name, []).append(target)
        faults.raise_any()
        for path, name in named_models(settings):
            with faults.collected():
                try:
                    self.resolve(name)
                except UnknownProvider as exc:
                    raise ConfigError(f"{path}: {exc}") from exc
        faults.raise_any()

    @property
    def names(self) -> list[str]:
        """The configured model names, in the order of the config."""
        return list(self._by_name)

    @property
    def needs_litellm(self) -> bool:
        """Whether any configured target is not native, and LiteLLM is installed."""
        lanes = (t.lane for ts in self._by_name.values() for t in ts)
        return can_translate() and "litellm" in lanes

    def candidates(
        self, model: str, now: float, conversation: str = "", *, seated: bool = False
    ) -> list[Target]:
        """The targets of a name's own deployments, best first. A conversation keeps its order, on
        every replica: the provider's prompt cache is where its last call went. Others take
        turns. `seated`: the client is one of a seat."""
        if seated:
            group = self.seated(model)
        else:
            group = self.resolve(model)
        if len(group) == 1:
            return list(group)
        if conversation:
            group = _by_rendezvous(group, conversation)
        awake = [t for t in group if not self._rests.is_resting(t.place, now)]
        order = [*awake, *(t for t in group if t not in awake)]
        if conversation:
            return order
        slots = [t for t in awake or group for _ in range(max(1, round(t.weight)))]
        first = slots[next(self._turn) % len(slots)]
        return [first, *(t for t in order if t is not first)]

    def fallbacks(
        self,
        model: str,
        now: float,
        conversation: str = "",
        *,
        seated: bool = False,
        kind: str = "",
    ) -> list[Target]:
        """Returns the targets to ask after those of `model`: the targets of its fallbacks, in
        their order. A fallback without a deployment is asked for by its own name at the default
        upstream. `kind`: prefix of the name, for a request that was refused because of its
        content."""
        entries = self._settings.router.fallbacks[::-1]  # the last entry of a name counts
        names = (f"{kind}{model}", f"{kind}*")
        listed = (entry[name] for name in names for entry in entries if name in entry)
        order = []
        for name in next(listed, ()):
            if name != model:
                found = self.candidates(name, now, conversation, seated=seated)
                order += [replace(t, model=name) if t.model is None else t for t in found]
        return order

    def keeps_names(self, dialect: Dialect | None) -> bool:
        """Whether the default upstream gets every name of a dialect unchanged although it is at
        OpenAI: the operator named another one for Messages."""
        upstream = self._settings.default_upstream
        if dialect is None or dialect.api != "anthropic":
            return False
        return bool(upstream.messages_api_base) and not upstream.provider_prefixes

    def seated(self, model: str) -> list[Target]:
        """The targets of a name that a client of a seat asks for: those of its deployments, else
        the seat's own host, whatever the name looks like."""
        return self._by_name.get(model) or self._by_pattern(model) or [self.default]

    def resolve(self, model: str) -> list[Target]:
        """The targets of one name's deployments; an unknown name has the default upstream. Raises:
        UnknownProvider: the name has a prefix that nobody knows (see `_unlisted`)."""
        return self._by_name.get(model) or self._by_pattern(model) or [self._unlisted(model)]

    def _matched(self, model: str) -> list[Target]:
        """The targets of the longest pattern that matches; empty when none does."""
        matched = longest_match([name for name in self._by_name if "*" in name], model)
        if matched is None:
            return []
        name, starred = matched
        found = []
        for pattern in self._by_name.get(name, ()):
            deployment = filled(self._settings.model_list[pattern.key - 1], starred)
            found.append(replace(self._targets.of(deployment, pattern.key), place=pattern.place))
        return found

    def at_place(self, place: str) -> Target | None:
        """The target at a place; None when the settings have none such."""
        known = (each for group in self._by_name.values() for each in group)
        return next((each for each in known if each.place == place), None)

    def failed(self, target: Target, now: float) -> bool:
        """Count a failure; after `router.allowed_fails` in a row the target rests: True."""
        allowed = self._settings.router.allowed_fails
        rest_s = self._settings.router.cooldown_s
        place = target.place
        return bool(place) and self._rests.failed(place, now, allowed=allowed, rest_s=rest_s)

    def succeeded(self, target: Target) -> None:
        """Forget the failures of a target."""
        self._rests.succeeded(target.place)

    @property
    def _has_keys(self) -> bool:
        return self._settings.auth.names_keys or self._keys_required()

    def lends_credentials(self, at_provider: bool) -> bool:
        """Whether requests of a cloud's clients may have the gateway's own credentials.
        `at_provider`: whether they go to a host of that cloud."""
        allowed = self._settings.default_upstream.cloud_credentials
        if allowed is None:
            return at_provider and not self._has_keys
        return allowed

    def _unlisted(self, model: str) -> Target:
        """The target of a name without a deployment.

        An upstream that the operator named gets it unchanged: it reads its own names, as OpenRouter
        and LiteLLM's proxy do. At OpenAI, where no name has a prefix, one that is known is that
        provider, with the key from its variable; with any other prefix the client's own key goes
        to the default upstream, but a configured one is not spent on it. Where clients have keys of
        this gateway, a provider that only they name is refused: they would spend every credential
        of the gateway's environment, and reach servers on its network. Raises: UnknownProvider: the
        prefix is refused, or nobody knows it and a configured key would be sent."""
        upstream = self._settings.default_upstream
        at_openai = self._at_openai
        chosen = upstream.provider_prefixes
        if not (at_openai if chosen is None else chosen):
            return self.default
        provider, name = providers.split_model(
            model, providers.is_known if at_openai else providers.is_tabled
        )
        if provider is None:
            if at_openai and upstream.api_key and (prefix := providers.unknown_prefix(model)):
                raise providers.unknown_provider(prefix, model)
            return self.default
        named = (each == model for _, each in named_models(self._settings))
        if self._has_keys and not (chosen or any(named)):
            raise UnknownProvider(
                f"{model!r} is not in model_list, and provider prefixes such as {provider}/ are "
                "off because this gateway has keys (default_upstream.provider_prefixes)"
            )
        params = {"model": f"{provider}/{name}"}
        return self._targets.of(Deployment(model_name="prefixed", litellm_params=params), 0)

    def _configured(self, deployment: Deployment, key: int) -> Target:
        params = deployment.litellm_params
        at = f"model_list[{key - 1}]"
        try:
            target = self._targets.of(deployment, key)
        except UnknownProvider as exc:
            named = "model"
            if params.get("custom_llm_provider"):
                named = "custom_llm_provider"
            hint = "a server of your own needs an api_base"
            raise ConfigError(f"{at}.litellm_params.{named}: {exc}; {hint}") from exc
        except ValueError as exc:
            raise ConfigError(f"{at}: {exc}") from exc
        if target.lane == "litellm" and not target.dialects and not can_translate():
            raise ConfigError(f"{at}.litellm_params.model: {params['model']!r}: {WITHOUT_LITELLM}")
        return target


def _dialects(
    deployment: Deployment, provider: str, lane: str, documented: frozenset[str]
) -> frozenset[str]:
    """Names of the dialects that the upstream of a deployment speaks itself."""
    if deployment.lane == "litellm" or deployment.litellm_params.get("mock_response"):
        return frozenset()
    if deployment.dialects is not None:
        return frozenset(deployment.dialects)
    api = {"anthropic": "anthropic", "gemini": "google"}.get(provider, "openai")
    if api == "openai" and lane != "native":
        return frozenset()
    if api == "openai" and documented:
        return documented
    return frozenset(name for name, dialect in DIALECTS.items() if dialect.api == api)


def _versioned(base: str) -> BaseURL:
    """A base URL with the version that Anthropic's clients add themselves."""
    base = base.rstrip("/")
    return base_url(base if base.endswith("/v1") else f"{base}/v1")


def _by_rendezvous(group: Sequence[Target], conversation: str) -> list[Target]:
    """Returns the targets in the order in which a conversation prefers them, by weight. A target
    that is added or removed moves only the conversations that prefer it. Source: Thaler and
    Ravishankar (1998), with the weights of Schindelhauer and Schomaker (2005)."""
    seen: Counter[str] = Counter()
    scored = []
    for target in group:
        place = f"{target.name}\n{target.model}\n{target.api_base.text}"
        seen[place] += 1
        # Deployments that differ in their key alone are distinguished by their order.
        name = f"{conversation}\n{place}\n{seen[place]}".encode("utf-8", "surrogatepass")
        drawn = int.from_bytes(blake2b(name, digest_size=8).digest(), "big") + 0.5
        scored.append((max(target.weight, 0.0) / -log(drawn / 2.0**64), target))
    return [target for _, target in sorted(scored, key=lambda pair: -pair[0])]
