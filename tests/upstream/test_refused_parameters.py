"""What a model is known to refuse, by the installed model list: a reason not to route to it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.config import settings_from_dict
from gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.model_abilities import ModelCatalogue

IMAGE = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/x.png"}}]}
]
SCHEMA = {"type": "json_schema", "schema": {}}
LISTED = [
    {
        "model_name": "own",
        "litellm_params": {"model": "openai/own-model", "api_base": "http://127.0.0.1:9/v1"},
        "model_info": {"supports_reasoning": True, "supports_response_schema": False},
    },
    {
        "model_name": "dull",
        "litellm_params": {"model": "openai/dull", "api_base": "http://127.0.0.1:9/v1"},
        "model_info": {"supports_reasoning": False},
    },
    {"model_name": "far", "litellm_params": {"model": "openai/o3-mini"}, "lane": "litellm"},
]


def refusal(model: str, dialect: Dialect, **fields: Any) -> str | None:
    """Why `model` is not used for a request with some fields."""
    settings = settings_from_dict({"model_list": LISTED})
    infos = {d.model_name: d.model_info for d in settings.model_list}
    catalogue = ModelCatalogue(DeploymentTable(settings, {}), infos)
    messages = {dialect.list_key: [{"role": "user", "content": "hi"}]}
    body = {"model": "asked", **messages, **fields}
    return catalogue.refusal(model, dialect.parse(orjson.dumps(body), orjson.loads))


@pytest.mark.parametrize(
    ("model", "dialect", "fields", "reason"),
    [
        ("gpt-4o", CHAT, {"reasoning_effort": "low"}, "no reasoning"),
        ("gpt-4.1", RESPONSES, {"reasoning": {"effort": "high"}}, "no reasoning"),
        ("dull", CHAT, {"reasoning_effort": "low"}, "no reasoning"),
        ("gpt-5", CHAT, {"reasoning_effort": "none"}, "no reasoning effort 'none'"),
        ("o3-mini", CHAT, {"max_tokens": 100}, "max_completion_tokens instead of max_tokens"),
        ("o3-mini", CHAT, {"temperature": 0.2}, "no temperature"),
        ("gpt-5", RESPONSES, {"top_p": 0.5}, "no top_p"),
        ("gpt-5.1", CHAT, {"temperature": 0, "reasoning_effort": "low"}, "no temperature"),
        ("gpt-4o", CHAT, {"max_tokens": 40_000}, "at most 16384 output tokens"),
        ("gpt-5-pro", CHAT, {}, "not in chat completions"),
        ("claude-opus-4-7", MESSAGES, {"max_tokens": 9, "temperature": 0.2}, "no temperature"),
        (
            "claude-sonnet-4-5",
            MESSAGES,
            {"max_tokens": 9, "thinking": {"type": "adaptive"}},
            "no adaptive thinking",
        ),
        ("gpt-3.5-turbo", CHAT, {"messages": IMAGE}, "no vision"),
        ("own", RESPONSES, {"text": {"format": SCHEMA}}, "no structured output"),
        ("own", MESSAGES, {"output_config": {"format": SCHEMA}}, "no structured output"),
    ],
)
def test_a_known_refusal_is_a_reason(
    model: str, dialect: Dialect, fields: dict[str, Any], reason: str
) -> None:
    """The reason names what the model lacks."""
    assert refusal(model, dialect, **fields) == reason


@pytest.mark.parametrize(
    ("model", "dialect", "fields"),
    [
        ("o3-mini", CHAT, {"max_completion_tokens": 100, "temperature": 1, "top_p": None}),
        ("o3-mini", CHAT, {"reasoning_effort": "high"}),
        ("gpt-5.1", CHAT, {"temperature": 0.2}),
        ("gpt-5.1", CHAT, {"temperature": 0.2, "reasoning_effort": "none"}),
        ("gpt-5-chat-latest", CHAT, {"temperature": 0.2, "max_tokens": 50}),
        ("gpt-4o", CHAT, {"temperature": 0.2, "max_tokens": 50, "reasoning_effort": "none"}),
        ("gpt-5-pro", RESPONSES, {"max_output_tokens": 50}),
        ("claude-opus-4-7", MESSAGES, {"max_tokens": 9, "thinking": {"type": "adaptive"}}),
        ("claude-sonnet-4-5", MESSAGES, {"max_tokens": 9, "temperature": 0.2}),
        ("own", CHAT, {"temperature": 0.2, "max_tokens": 50, "messages": IMAGE}),
        ("far", CHAT, {"max_tokens": 50, "temperature": 0.2}),
        ("nobody-lists-this", CHAT, {"reasoning_effort": "low", "messages": IMAGE}),
    ],
)
def test_what_is_not_known_is_no_reason(
    model: str, dialect: Dialect, fields: dict[str, Any]
) -> None:
    """Accepted parameters, ones that LiteLLM translates, models of one's own, unknown models."""
    assert refusal(model, dialect, **fields) is None
