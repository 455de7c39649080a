"""Turns a client's chat request into the arguments of one LiteLLM call. Pure.

LiteLLM takes its own controls (`api_base`, `api_key`, callbacks, mock answers, AWS roles) from the
same keyword arguments as the request's fields, so a client's field is passed by name only if it is
an OpenAI parameter; anything else goes into the body for the provider, or is left out and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.upstream.litellm_lane.messages import (
    copied,
    lacks_thinking,
    translatable,
    without_empty_turns,
)

# Source: OpenAI API reference, "Create chat completion"; `thinking` is LiteLLM's extension.
OPENAI_PARAMS = frozenset(
    {
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    }
)
_ENVELOPE = frozenset({"model", "messages", "stream", "stream_options"})
# Asking for what happens anyway is no loss when it is left out.
_HARMLESS = {"n": 1, "logprobs": False, "store": False, "service_tier": "auto"}

# Fields of the providers' own APIs that clients add to OpenAI's. Anthropic, Google and Bedrock
# refuse a request with any other, so those are left out.
# Source: Anthropic Messages, Gemini generateContent and Bedrock Converse references.
_NATIVE_FIELDS: Mapping[str, frozenset[str]] = {
    "anthropic": frozenset(
        {"cache_control", "container", "context_management", "mcp_servers", "output_config"}
        | {"speed", "top_k"}
    ),
    "bedrock": frozenset({"guardrailConfig", "performanceConfig", "requestMetadata", "top_k"}),
    "gemini": frozenset({"cached_content", "labels", "safety_settings", "top_k"}),
}
_FAMILY = {"vertex_ai": "gemini", "vertex_ai_beta": "gemini", "bedrock_converse": "bedrock"}

# What `litellm_params` holds for a router, or what the lane decides itself.
_NOT_FOR_THE_CALL = frozenset(
    {"model", "messages", "stream", "stream_options", "fallbacks", "model_list", "callbacks"}
    | {"drop_params", "max_retries", "num_retries", "timeout", "stream_timeout", "model_info"}
    | {"rpm", "tpm", "weight", "order", "tags", "max_parallel_requests", "extra_headers"}
    | {"input_cost_per_token", "output_cost_per_token"}
)
# Client headers that mean something to a provider behind a translation.
_PASSED_HEADERS = frozenset({b"anthropic-beta", b"traceparent", b"tracestate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteLLMRequest:
    """The keyword arguments of the call, and the fields that will not reach the provider."""

    kwargs: dict[str, Any]
    dropped: tuple[str, ...]


def prepare(
    body: Mapping[str, Any],
    params: Mapping[str, Any],
    *,
    provider: str,
    supported: frozenset[str] | None,
    speaks_openai: bool,
) -> LiteLLMRequest:
    """Arguments for `acompletion` from the client's JSON and the deployment's `litellm_params`.

    The client's parameters win over those of the deployment. `supported`: the parameters that can
    be translated for the model; None counts all as such. The body is not changed: messages are
    copied, because translation edits them in place and a retry needs them again.
    """
    sent = {key: value for key, value in body.items() if value is not None and key not in _ENVELOPE}
    kwargs = of_deployment(params)
    known = {key: value for key, value in sent.items() if key in OPENAI_PARAMS}
    unknown = {key: value for key, value in sent.items() if key not in OPENAI_PARAMS}
    dropped = [key for key in known if supported is not None and key not in supported]
    kwargs.update(copied(known))
    gemini = _FAMILY.get(provider, provider) == "gemini"
    sent_messages = copied(body.get("messages") or [])
    if not speaks_openai:
        sent_messages = without_empty_turns(sent_messages)
    kwargs["messages"] = translatable(sent_messages, keep_signatures=gemini)
    if lacks_thinking(sent_messages) and not (speaks_openai or gemini):
        dropped += [key for key in ("thinking", "reasoning_effort") if kwargs.pop(key, None)]
    if speaks_openai:
        kwargs["extra_body"] = {**(kwargs.get("extra_body") or {}), **copied(unknown)}
    else:
        native = _NATIVE_FIELDS.get(_FAMILY.get(provider, provider), frozenset({"top_k"}))
        kwargs.update(copied({key: value for key, value in unknown.items() if key in native}))
        dropped += [key for key in unknown if key not in native]
    reported = [key for key in dict.fromkeys(dropped) if sent.get(key) != _HARMLESS.get(key, ...)]
    return LiteLLMRequest(kwargs=kwargs, dropped=tuple(reported))


def of_deployment(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a deployment's `litellm_params` say about the call itself."""
    return {key: value for key, value in params.items() if key not in _NOT_FOR_THE_CALL}


def extra_headers(
    params: Mapping[str, Any], client: Iterable[tuple[bytes, bytes]], own: Mapping[str, str]
) -> dict[str, str]:
    """Headers to add to the provider's request: the deployment's, the gateway's, some client's."""
    passed = {k.decode(): v.decode("latin-1") for k, v in client if k in _PASSED_HEADERS}
    return {**passed, **(params.get("extra_headers") or {}), **own}


def end_marks(provider: str, name: str) -> tuple[bytes, ...]:
    """Bytes that end a streamed turn, where LiteLLM calls every chunk the last one: Gemini's.

    Source: Gemini API reference, `Candidate.finishReason` and `PromptFeedback.blockReason`.
    """
    if _FAMILY.get(provider, provider) == "gemini" and "gemini" in f"{provider}/{name}":
        return (b'"finishReason"', b'"blockReason"')
    return ()


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the client asked for usage at the end of its stream."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and bool(options.get("include_usage"))
