"""Parameters of a request that a model is known to refuse. Pure.

Only what a provider answers with an error counts. What is not known is no reason: the requested
model answers when a routed one refuses. Through LiteLLM most parameters are translated or left out,
so there only the number of output tokens counts.

Sources: OpenAI's guides on reasoning models (no `max_tokens` in chat completions, no sampling
parameters while reasoning), Anthropic's Messages reference (thinking, prefill, sampling), and the
flags of LiteLLM's model list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.upstream.prices import ModelInfo
from gateway.wire.coerce import as_mapping, as_number

# These answer 400 to more output tokens than the model can write; others reduce the number.
_BOUNDED_OUTPUT = frozenset({"openai", "anthropic", "azure", "bedrock", "bedrock_converse"})
# The list marks each model of theirs that reasons, so that no mark means it does not. Elsewhere it
# means little: of 310 such models whose name is marked under another provider 282 do reason.
_REASONING_MARKED = frozenset({"openai", "anthropic"})
_OUTPUT_NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# A value that asks for what happens anyway is accepted by every model.
_SAMPLING_DEFAULTS: Mapping[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
}
_ANTHROPIC_SAMPLING = ("temperature", "top_p", "top_k")


def refused_parameter(
    info: ModelInfo, body: Mapping[str, Any], *, dialect: str, native: bool
) -> str | None:
    """Why a model refuses a request's parameters, or None.

    `dialect`: the name of the client's dialect; `native`: whether its bytes go to the provider.
    """
    most = info.max_output_tokens
    asked = max((as_number(body.get(name), 0.0) for name in _OUTPUT_NAMES), default=0.0)
    if most is not None and info.provider in _BOUNDED_OUTPUT and asked > most:
        return f"at most {most} output tokens"
    if not native:
        return None
    effort = body.get("reasoning_effort") or as_mapping(body.get("reasoning")).get("effort")
    thinking = as_mapping(body.get("thinking")).get("type")
    unmarked = info.reasoning is None and info.listed and info.provider in _REASONING_MARKED
    if info.reasoning is False or unmarked:
        asks = effort not in (None, "none") or thinking in ("enabled", "adaptive")
        return "no reasoning" if asks else None
    if not info.listed:
        return None
    if info.provider == "openai":
        return _refused_by_openai(info, body, dialect, effort)
    if info.provider == "anthropic":
        if thinking == "adaptive" and not info.adaptive_thinking:
            return "no adaptive thinking"
        if "supports_sampling_params" in info.lacks:
            return _sampling(body, _ANTHROPIC_SAMPLING)
    return None


def _refused_by_openai(
    info: ModelInfo, body: Mapping[str, Any], dialect: str, effort: Any
) -> str | None:
    """Of a model that reasons."""
    if dialect == "chat" and info.only_responses:
        return "not in chat completions"
    if f"supports_{effort}_reasoning_effort" in info.lacks:
        return f"no reasoning effort {effort!r}"
    if info.is_chat_tuned:
        return None
    if dialect == "chat" and body.get("max_tokens") is not None:
        return "max_completion_tokens instead of max_tokens"
    if effort != "none" if effort else not info.may_not_reason:
        return _sampling(body, tuple(_SAMPLING_DEFAULTS))
    return None


def _sampling(body: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = body.get(name)
        if value is not None and value != _SAMPLING_DEFAULTS.get(name):
            return f"no {name}"
    return None
