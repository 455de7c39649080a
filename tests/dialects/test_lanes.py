"""Where a request in each dialect goes: as it is, to whom, with which key."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.dialects import DIALECTS, MESSAGES, RESPONSES
from gateway.upstream.deployments import DeploymentTable
from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.looping import STEERING, Start

SAID: Any = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": SAID},
    "responses": {"input": SAID},
    "messages": {"messages": SAID, "max_tokens": 64},
}


def deployment(model: str, **params: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {k: params.pop(k) for k in ("dialects", "lane") if k in params}
    return {"model_name": "m", "litellm_params": {"model": model, **params}, **extra}


def table(*models: dict[str, Any], env: dict[str, str] | None = None, **more: Any) -> Any:
    return DeploymentTable(settings_from_dict({"model_list": list(models), **more}), env or {})


@pytest.mark.parametrize(
    ("made", "native"),
    [
        (deployment("openai/gpt-5"), {"chat", "responses"}),
        (deployment("hosted_vllm/x", api_base="http://v/v1"), {"chat", "responses"}),
        (deployment("hosted_vllm/x", api_base="http://v/v1", dialects=["chat"]), {"chat"}),
        (deployment("anthropic/claude-x"), {"messages"}),
        (deployment("anthropic/claude-x", lane="litellm"), set()),
        (deployment("gemini/gemini-x"), {"gemini"}),
        (deployment("vertex_ai/gemini-x"), set()),
        (
            deployment("openrouter/a/b", dialects=["chat", "responses", "messages"]),
            {"chat", "responses", "messages"},
        ),
    ],
)
def test_the_lane_is_chosen_by_dialect(made: dict[str, Any], native: set[str]) -> None:
    """What the upstream speaks goes as it is; the rest is translated."""
    target = table(made).resolve("m")[0]
    for name, dialect in DIALECTS.items():
        lane = target.for_dialect(dialect).lane
        assert lane == ("native" if name in native else "litellm")


def test_the_default_upstream_speaks_what_it_is_asked_in() -> None:
    """Messages of names without a deployment go to Anthropic while the default is OpenAI's API."""
    default = table().resolve("claude-x")[0]
    assert default.for_dialect(MESSAGES).api_base.text == "https://api.anthropic.com/v1"
    assert default.for_dialect(RESPONSES).api_base.text == "https://api.openai.com/v1"
    elsewhere = table(default_upstream={"api_base": "http://own/v1"}).resolve("claude-x")[0]
    assert elsewhere.for_dialect(MESSAGES).api_base.text == "http://own/v1"
    named = table(default_upstream={"messages_api_base": "http://two"}).resolve("claude-x")[0]
    assert named.for_dialect(MESSAGES).api_base.text == "http://two/v1"
    ports = {"api_base": "http://own:1/v1", "messages_api_base": "http://own:2", "api_key": "k"}
    beside = table(default_upstream=ports).resolve("claude-x")[0]
    assert beside.for_dialect(RESPONSES).api_key == "k"
    assert beside.for_dialect(MESSAGES).api_key is None  # another server on that host


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_an_anthropic_base_with_or_without_its_version(
    gateway_server: Start, upstream: ScriptedUpstream, suffix: str
) -> None:
    """`api_base` is written as Anthropic's clients have it; the path comes out right."""
    made = deployment("anthropic/claude-x", api_base=upstream.url + suffix, api_key="sk-ant-own")
    server = gateway_server({**STEERING, "model_list": [made]})
    headers = {"x-api-key": "theirs", "authorization": "Bearer theirs", "anthropic-version": "v"}
    body = {"model": "m", **BODIES["messages"]}
    url = f"{server.base_url}/messages"
    answer = httpx.post(url, json=body, headers=headers, params={"beta": "true"})
    assert answer.status_code == 200
    last = upstream.last
    assert last.target == "/v1/messages?beta=true"
    assert last.model == "claude-x"
    assert last.header("x-api-key") == "sk-ant-own"
    assert last.header("authorization") is None
    assert last.header("anthropic-version") == "v"
    counted = httpx.post(f"{url}/count_tokens", json=body, headers=headers)
    assert counted.status_code == 200
    assert upstream.last.path == "/v1/messages/count_tokens"
    assert upstream.last.header("x-api-key") == "sk-ant-own"
    assert upstream.last.model == "claude-x"


def test_a_token_of_a_subscription_goes_where_tokens_go(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A key that is an OAuth token is sent as a bearer."""
    made = deployment("anthropic/claude-x", api_base=upstream.url, api_key="sk-ant-oat01-x")
    server = gateway_server({**STEERING, "model_list": [made]})
    httpx.post(f"{server.base_url}/messages", json={"model": "m", **BODIES["messages"]})
    assert upstream.last.header("authorization") == "Bearer sk-ant-oat01-x"
    assert upstream.last.header("x-api-key") is None


@pytest.mark.parametrize("path", BODIES)
def test_a_deployment_of_all_three(
    gateway_server: Start, upstream: ScriptedUpstream, path: str
) -> None:
    """An upstream that speaks all dialects gets each as the client wrote it."""
    dialects = ["chat", "responses", "messages"]
    made = deployment(
        "openai/gpt-x", api_base=upstream.base_url, api_key="k", dialects=dialects, temperature=0.5
    )
    server = gateway_server({**STEERING, "model_list": [made]})
    upstream.default = Reply("Hello.")
    answer = httpx.post(f"{server.base_url}/{path}", json={"model": "m", **BODIES[path]})
    assert answer.status_code == 200
    assert upstream.last.path == f"/v1/{path}"
    assert upstream.last.header("authorization") == "Bearer k"
    assert (upstream.last.model, upstream.last.fields["temperature"]) == ("gpt-x", 0.5)


def test_keys_of_the_environment(upstream: ScriptedUpstream) -> None:
    """Anthropic's variable is used at Anthropic, and not at a base of the operator's own."""
    env = {"ANTHROPIC_API_KEY": "sk-ant-env"}
    assert table(deployment("anthropic/x"), env=env).resolve("m")[0].api_key == "sk-ant-env"
    own = deployment("anthropic/x", api_base="http://own")
    assert table(own, env=env).resolve("m")[0].api_key is None


def test_the_clients_key_goes_to_its_own_provider_only() -> None:
    """A client of Messages has a key for Anthropic, so it goes there and nowhere else."""
    here = table().resolve("anthropic/claude-x")[0].for_dialect(MESSAGES)
    assert (here.lane, here.client_apis) == ("native", {"anthropic"})
    there = table(deployment("anthropic/x", api_base="http://other")).resolve("m")[0]
    assert not there.for_dialect(MESSAGES).client_apis


def test_an_answer_stays_with_who_gave_it(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Of two upstreams of one name, later requests about an answer reach the one that has it."""
    with ScriptedUpstream() as other:
        places = (upstream, other)
        models = [
            deployment("openai/gpt-x", api_base=place.base_url, api_key=f"k{number}")
            for number, place in enumerate(places)
        ]
        elsewhere = {"api_base": "http://127.0.0.1:9/v1"}
        server = gateway_server({**STEERING, "model_list": models, "default_upstream": elsewhere})
        for number, place in enumerate(places):
            place.default = Reply("Hello.", id=f"resp_{number}")
        url = f"{server.base_url}/responses"
        body = {"model": "m", "input": "Hi", "background": True}
        asked: set[str] = set()
        for number in range(100):  # each conversation keeps one of the two
            opened = httpx.post(url, json={**body, "input": f"Hi {number}"})
            asked.add(opened.json()["id"])
            if len(asked) == len(places):
                break
        assert asked == {"resp_0", "resp_1"}
        for number, place in enumerate(places):
            name = f"resp_{number}"
            assert httpx.get(f"{url}/{name}").json()["id"] == name
            assert place.last.header("authorization") == f"Bearer k{number}"
            assert httpx.get(f"{url}/{name}/input_items").status_code == 200
            for _ in range(3):
                later = {**body, "previous_response_id": name}
                assert httpx.post(url, json=later).json()["id"] == name
            assert httpx.post(f"{url}/{name}/cancel").json()["status"] == "cancelled"
            assert httpx.delete(f"{url}/{name}").json()["deleted"] is True
