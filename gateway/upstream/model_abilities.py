"""Abilities and prices of a requested model: by the config, else by the price list."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gateway.config import Settings
from gateway.config.settings import named_models
from gateway.data_files import read_toml
from gateway.dialects import CHAT, SteeredRequest
from gateway.dialects.own_answers import answer_formats
from gateway.upstream.deployments import DeploymentTable, Target
from gateway.upstream.model_costs import RATE_KEYS, Listed, ModelInfo, capabilities, default_list
from gateway.upstream.token_estimates import BYTES_PER_TOKEN, body_tokens
from gateway.values import Fields
from gateway.wire.coerce import as_bool, as_int, as_number, mapping_at
from gateway.wire.message_identity import offered_tools
from gateway.wire.request import ChatRequest

_TABLE = read_toml(__package__, "model_abilities.toml")


def refused_parameter(info: ModelInfo, body: Fields, *, dialect: str, native: bool) -> str | None:
    """Why a model refuses a request's parameters, or None. `dialect`: the name of the client's
    dialect; `native`: whether its bytes go to the provider."""
    listed = info.listed
    most = listed.max_output_tokens if listed else None
    asked = max((as_number(body.get(name), 0.0) for name in _TABLE["output_names"]), default=0.0)
    if most is not None and info.provider in _TABLE["bounded_output"] and asked > most:
        return f"at most {most} output tokens"
    if not native:
        return None
    effort = body.get("reasoning_effort") or mapping_at(body, "reasoning").get("effort")
    thinking = mapping_at(body, "thinking").get("type")
    unmarked = info.reasoning is None and listed and info.provider in _TABLE["reasoning_marked"]
    if info.reasoning is False or unmarked:
        if effort not in (None, "none") or thinking in ("enabled", "adaptive"):
            return "no reasoning"
        return None
    if listed is None:
        return None
    if info.provider == "openai":
        return _refused_by_openai(listed, body, dialect, effort=effort)
    if info.provider == "anthropic":
        if thinking == "adaptive" and not listed.adaptive_thinking:
            return "no adaptive thinking"
        if "supports_sampling_params" in listed.lacks:
            return _sampling(body, _TABLE["anthropic_sampling"])
    return None


def _refused_by_openai(listed: Listed, body: Fields, dialect: str, effort: Any) -> str | None:
    """The same for OpenAI's models that reason."""
    if dialect == "chat" and listed.only_responses:
        return "not in chat completions"
    if f"supports_{effort}_reasoning_effort" in listed.lacks:
        return f"no reasoning effort {effort!r}"
    if listed.is_chat_tuned:
        return None
    if dialect == "chat" and body.get("max_tokens") is not None:
        return "max_completion_tokens instead of max_tokens"
    if effort != "none" if effort else not listed.may_not_reason:
        return _sampling(body, _TABLE["sampling_defaults"])
    return None


def _sampling(body: Fields, names: Iterable[str]) -> str | None:
    for name in names:
        value = body.get(name)
        if value is not None and value != _TABLE["sampling_defaults"].get(name):
            return f"no {name}"
    return None


_IMAGE_PARTS = frozenset({"image_url", "input_image", "image", "computer_screenshot"})
# Each of these names contains one of two words, possibly written in escapes.
_IMAGE_NAME = re.compile(rb"image|screenshot|\\u00[567]")
INPUT_PER_OUTPUT = 20  # tokens that an agent's calls send for each that they receive
# Prices that the config may give a deployment; `litellm_params` may have the first two.
_PRICES = {kind: RATE_KEYS[kind] for kind in ("input", "output", "cache_read")}
_PART_DEPTH = 2  # a message, its part, and a part of a tool's result


_HERE = r"(?:localhost|127\.[\d.]+|::1|0\.0\.0\.0|host\.docker\.internal)"
# A model that this machine runs: by its provider, by the usual port of Ollama, LM Studio, llama.cpp
# or vLLM, or by a name that only such servers have. A proxy on this machine may ask a company.
_LOCAL = re.compile(
    rf"(?:ollama|ollama_chat|lm_studio|llamafile|hosted_vllm) (?:litellm\.invalid|{_HERE}) "
    rf"|\S+ {_HERE} (?:(?:11434|1234|8080|8000) |\S+ .*(?:[^:]:[\w.-]+|\.gguf)$)"
)


class ModelCatalogue:
    """Looks up requested names by the deployments that serve them."""

    def __init__(self, table: DeploymentTable, model_info: Mapping[str, Fields]):
        self._table = table
        self._own = model_info
        # The entry of a requested name; None when it is in neither list nor config.
        self.info = lru_cache(1000)(self._info)
        known = default_list()
        self.relative = known.relative if known is not None else lambda _: None

    def cost(self, model: str, usage: Fields | None) -> float | None:
        """US dollars for one call; None when the model or its usage is unknown, never 0 for it."""
        info = self.info(model)
        if info is None or not usage:
            return None
        return info.cost(usage)

    def unpriced(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """(setting, name) of each configured model without a known price."""
        names = {name: f"model_list ({name})" for name in self._table.names if "*" not in name}
        names |= {model: path for path, model in named_models(settings)}
        for name, path in names.items():
            if self.price(name) is None:
                yield path, name

    def billed_name(self, model: str, target: Target | None) -> str:
        """The name whose prices hold for a request for `model` that a target answered."""
        if target is None:
            return model
        own = [(each.key, each.model) for each in self._table.resolve(model)]
        if (target.key, target.model) in own:
            return model
        if target.key:
            return target.name
        return target.model or model

    def price(self, model: str) -> float | None:
        """US dollars for an average step's share of a million tokens read, by which models are
        compared; None when the model's prices are not known."""
        info = self.info(model)
        if info is None or not {"input", "output"} <= info.rates.keys():
            return None
        return info.rates["input"] * INPUT_PER_OUTPUT + info.rates["output"]

    def refusal(self, model: str, request: ChatRequest) -> str | None:
        """Why `model` cannot serve the request; None when it can, or when nothing is known."""
        info = self.info(model)
        body = request.body
        raw = request.raw
        if info is None:
            return None
        if info.tools is False and any(offered_tools(body)):
            return "no tools"
        if info.response_schema is False and any(
            form.get("type") == "json_schema" for form in answer_formats(body)
        ):
            return "no structured output"
        if as_int(body.get("n"), 1) > 1 and info.provider in _TABLE["one_choice"]:
            return "one choice only"
        limit = info.max_input_tokens
        if limit is not None and len(raw) // BYTES_PER_TOKEN > limit and body_tokens(raw) > limit:
            return f"context of {limit} tokens"
        # The bytes are searched first: most histories have no image and need not be read.
        messages = getattr(request, "own_messages", request.messages)
        if info.vision is False and _IMAGE_NAME.search(raw) and _has_image(messages):
            return "no vision"
        dialect = request.dialect if isinstance(request, SteeredRequest) else CHAT
        native = self._table.resolve(model)[0].for_dialect(dialect).lane == "native"
        return refused_parameter(info, body, dialect=dialect.name, native=native)

    def _info(self, model: str) -> ModelInfo | None:
        target = self._table.resolve(model)[0]
        listed_as = target.model or model
        if target.model is not None and target.provider not in ("openai", "other"):
            listed_as = f"{target.provider}/{target.model}"
        known = capabilities(listed_as)
        place = f"{target.provider} {target.api_base.host} {target.api_base.port or '-'} {model}"
        if known is None and _LOCAL.match(place):
            known = ModelInfo(tiers=((-1, {"input": 0.0, "output": 0.0}),))
        given = {**target.litellm_params, **target.params}
        own = {**self._own.get(target.name, {})}
        own |= {name: given[name] for name in list(_PRICES.values())[:2] if name in given}
        if not own:
            return known
        known = known or ModelInfo(provider=target.provider)
        rates = dict(known.rates)
        for kind, name in _PRICES.items():
            with suppress(KeyError, TypeError, ValueError):
                rates[kind] = float(own[name])  # YAML reads `1e-6` as text
        return replace(
            known,
            tiers=(*known.tiers[:-1], (-1, rates)),
            max_input_tokens=as_int(own.get("max_input_tokens"), known.max_input_tokens),
            tools=as_bool(own.get("supports_function_calling"), known.tools),
            vision=as_bool(own.get("supports_vision"), known.vision),
            response_schema=as_bool(own.get("supports_response_schema"), known.response_schema),
            reasoning=as_bool(own.get("supports_reasoning"), known.reasoning),
        )


def _has_image(parts: object, depth: int = 0) -> bool:
    """Whether there is an image among messages or their parts, results of tools included."""
    if not isinstance(parts, Sequence) or isinstance(parts, str) or depth > _PART_DEPTH:
        return False
    return any(
        str(part.get("type")) in _IMAGE_PARTS
        or any(
            _has_image(below, depth + 1)
            for below in (part.get("content"), part.get("output"), [part.get("output")])
        )
        for part in parts
        if isinstance(part, Mapping)
    )
