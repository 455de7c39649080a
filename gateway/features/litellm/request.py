"""Turns a client's request into the arguments of one LiteLLM call. Pure.

LiteLLM takes its own controls (`api_base`, `api_key`, callbacks, mock answers, AWS roles) from the
same keyword arguments as the request's fields, so a client's field is passed by name only if it is
a parameter of the API; anything else goes into the body for the provider, or is left out and
reported. Messages are repaired so that LiteLLM translates them without loss or error, and the form
before tools (`functions`, `function_call`) becomes the present one and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import orjson

from gateway.dialects import RESPONSES, LiteLLMCall
from gateway.errors import UpstreamFailure
from gateway.upstream.deployments import Target
from gateway.upstream.providers import TABLE
from gateway.upstream.retries import ROUTER_KEYS
from gateway.values import FieldDict, Fields, Texts
from gateway.wire.coerce import as_mapping, objects

# LiteLLM appends Gemini's signature of a call to the call's id; other providers refuse such ids.
_SIGNATURE_MARK = "__thought__"


def translatable(messages: Sequence[Any], *, keep_signatures: bool) -> list[Any]:
    """The messages, repaired in place; `keep_signatures`: the provider made those in ids."""
    for message in messages:
        if not isinstance(message, dict):
            continue
        for block in objects(message.get("thinking_blocks")):
            # The index is ours, for clients that join stream deltas; the provider refuses it.
            block.pop("index", None)
        calls = objects(message.get("tool_calls"))
        for call in calls:
            function = call.get("function")
            if isinstance(function, dict):
                function["arguments"] = _json_object(function.get("arguments"))
        if not keep_signatures:
            for holder, key in [(message, "tool_call_id"), *((call, "id") for call in calls)]:
                if isinstance(holder.get(key), str):
                    holder[key] = holder[key].partition(_SIGNATURE_MARK)[0]
    return list(messages)


def without_empty_turns(messages: Sequence[Any]) -> list[Any]:
    """The messages without assistant turns in which nothing was said or done. Agents echo them;
    other wires refuse empty text, and LiteLLM would put its own sentence into the conversation."""
    said = ("content", "tool_calls", "function_call", "thinking_blocks", "audio", "refusal")
    return [
        message
        for message in messages
        if not isinstance(message, Mapping)
        or message.get("role") != "assistant"
        or any(message.get(key) for key in said)
    ]


def lacks_thinking(messages: Sequence[Any]) -> bool:
    """Whether the newest tool-calling turn came back without its signed thinking. Clients that know
    OpenAI's fields only do not echo it, and Anthropic refuses to think on after a tool call whose
    thinking is missing; without thinking the same request is accepted."""
    for message in reversed(messages):
        if not isinstance(message, Mapping) or message.get("role") == "user":
            return False
        if message.get("role") == "assistant" and message.get("tool_calls"):
            return not message.get("thinking_blocks")
    return False


def copied(value: Any) -> Any:
    """A deep copy of parsed JSON, an order of magnitude cheaper than `copy.deepcopy`."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError):  # integers above 64 bits, lone surrogates
        return json.loads(json.dumps(value))


def _json_object(arguments: Any) -> Any:
    """Returns a call's arguments as an object, the only form that other APIs can carry. Agents
    echo a model's broken arguments together with the tool's complaint about them; broken ones
    are kept under one key, so that the model sees what it wrote."""
    if not isinstance(arguments, str):
        if arguments is not None:
            return arguments
        return "{}"
    try:
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    except ValueError:
        pass
    if arguments.strip():
        return json.dumps({"arguments": arguments})
    return "{}"


_PARAMETERS = TABLE["parameters"]
OPENAI_PARAMS = frozenset(_PARAMETERS["openai"].split())
_ENVELOPE = frozenset({"model", "messages", "stream", "stream_options"})
# Asking for what happens anyway is no loss when it is left out.
_HARMLESS = {"n": 1, "logprobs": False, "store": False, "service_tier": "auto"}

_NATIVE_FIELDS = {
    family: frozenset(fields.split()) for family, fields in _PARAMETERS["native"].items()
}
_FAMILY = {"vertex_ai": "gemini", "vertex_ai_beta": "gemini", "bedrock_converse": "bedrock"}

_NOT_FOR_THE_CALL = frozenset(_PARAMETERS["router"].split())
# Client headers that mean something to a provider behind a translation.
_PASSED_HEADERS = frozenset({b"anthropic-beta", b"traceparent", b"tracestate"})


class LiteLLMRequest(NamedTuple):
    """One call as LiteLLM takes it."""

    kwargs: FieldDict  # keyword arguments of the call
    dropped: tuple[str, ...]  # fields of the body that will not reach the provider


def prepare(
    body: Fields,
    params: Fields,
    *,
    provider: str,
    supported: frozenset[str] | None,
    speaks_openai: bool,
) -> LiteLLMRequest:
    """Arguments for `acompletion` from the client's JSON and the deployment's `litellm_params`. The
    client's parameters win over those of the deployment. `supported`: the parameters that can be
    translated for the model; None counts all as such. The body is not changed: messages are copied,
    because translation edits them in place and a retry needs them again. Raises: UpstreamFailure:
    the request offers `functions` to a provider that knows only tools."""
    if body.get("functions") and not (speaks_openai or body.get("tools")):
        raise _unsupported("functions", "only an upstream of OpenAI's form knows them; send tools")
    sent = {key: value for key, value in body.items() if value is not None and key not in _ENVELOPE}
    known = {key: value for key, value in sent.items() if key in OPENAI_PARAMS}
    unknown = {key: value for key, value in sent.items() if key not in OPENAI_PARAMS}
    dropped = [key for key in known if supported is not None and key not in supported]
    dropped += [key for key in ROUTER_KEYS if unknown.pop(key, None) is not None]
    family = _FAMILY.get(provider, provider)
    messages = copied(body.get("messages") or [])
    if not speaks_openai:
        messages = without_empty_turns(messages)
    messages = translatable(messages, keep_signatures=family == "gemini")
    kwargs = {**of_deployment(params), **copied(known), "messages": messages}
    if lacks_thinking(messages) and not (speaks_openai or family == "gemini"):
        dropped += [key for key in ("thinking", "reasoning_effort") if kwargs.pop(key, None)]
    if speaks_openai:
        kwargs["extra_body"] = {**(kwargs.get("extra_body") or {}), **copied(unknown)}
    else:
        native = _NATIVE_FIELDS.get(family, frozenset({"top_k"}))
        kwargs.update(copied({key: value for key, value in unknown.items() if key in native}))
        dropped += [key for key in unknown if key not in native]
    reported = [key for key in dict.fromkeys(dropped) if sent.get(key) != _HARMLESS.get(key, ...)]
    return LiteLLMRequest(kwargs, tuple(reported))


def _unsupported(name: str, reason: str) -> UpstreamFailure:
    return UpstreamFailure(
        f"{name}: {reason}",
        status=400,
        type="invalid_request_error",
        code="unsupported_parameter",
        param=name,
    )


def of_deployment(params: Fields) -> FieldDict:
    """The parameters of the call itself in a deployment's `litellm_params`."""
    return {key: value for key, value in params.items() if key not in _NOT_FOR_THE_CALL}


def extra_headers(
    params: Fields, client: Iterable[tuple[bytes, bytes]], own: Texts
) -> dict[str, str]:
    """Headers to add to the provider's request: the deployment's, the gateway's, some client's."""
    passed = {k.decode(): v.decode("latin-1") for k, v in client if k in _PASSED_HEADERS}
    return {**passed, **(params.get("extra_headers") or {}), **own}


def end_marks(
    provider: str, name: str, *, translated: bool, speaks_openai: bool
) -> tuple[bytes, ...]:
    """Byte strings one of which the provider sends at the end of a streamed turn; none if they are
    not known, or if LiteLLM's chunks say it. LiteLLM calls every chunk of Gemini's the last one.
    Source: Gemini API reference, `Candidate.finishReason` and `PromptFeedback.blockReason`."""
    if translated and provider == "anthropic":
        return ENDS[:1]
    if translated and speaks_openai:
        return _OPENAI_ENDS
    if _FAMILY.get(provider, provider) == "gemini" and "gemini" in f"{provider}/{name}":
        return (b'"finishReason"', b'"blockReason"')
    return ()


_TRANSLATED_ENVELOPE = frozenset({"model", "stream", "stream_options"})
ENDS = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
# LiteLLM ends its stream at the finish reason, before it reads `[DONE]`.
_OPENAI_ENDS = (b'"finish_reason":"', b'"finish_reason": "', *ENDS[1:])
# LiteLLM would ask an `openai` deployment in Responses; this name makes it ask in chat completions.
_CHAT_ONLY_PROVIDER = "hosted_vllm"


# Before the system prompt, for Anthropic: with another value at each call of Claude Code, which
# would spoil any other provider's prompt cache.
_BILLING = "x-anthropic-billing-header:"


def translated_arguments(
    target: Target, body: Fields, call: LiteLLMCall, provider: str, name: str
) -> LiteLLMRequest:
    """Arguments for LiteLLM's function of a dialect other than chat. Raises: UpstreamFailure: the
    request refers to a history that LiteLLM does not store."""
    for name in call.stored_history:
        if body.get(name):
            raise _unsupported(name, "needs an upstream that keeps responses; send the items again")
    sent = {k: v for k, v in body.items() if v is not None and k not in _TRANSLATED_ENVELOPE}
    kwargs = of_deployment(target.params) | copied({k: sent[k] for k in sent if k in call.fields})
    if isinstance(blocks := kwargs.get("system"), list):
        texts = (str(as_mapping(block).get("text")) for block in blocks)
        kept = [not text.startswith(_BILLING) for text in texts]
        kwargs["system"] = list(compress(blocks, kept))
    if not target.speaks(RESPONSES):  # then LiteLLM has to ask in chat completions
        if call.function == "aresponses":
            kwargs["use_chat_completions_api"] = True
        elif provider == "openai":
            kwargs |= {"model": f"{_CHAT_ONLY_PROVIDER}/{name}", "api_base": target.api_base.text}
            kwargs.pop("custom_llm_provider", None)
    return LiteLLMRequest(kwargs, tuple(k for k in sent if k not in call.fields))
