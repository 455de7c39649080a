"""Anthropic's own clients of Bedrock and Vertex AI through the gateway, before scripted hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dialects import BEDROCK, own_answers
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.looping import GUIDANCE, Start, looping_model, states
from steering_gateway_testing.official import anthropic
from steering_gateway_testing.patience import until
from tests.dialects import clouds
from tests.dialects.clouds import (
    BEDROCK_KEY,
    CLAUDE,
    GOOGLE_TOKEN,
    ON_VERTEX,
    REGION,
    Host,
    settings_for,
)
from tests.dialects.test_agents import CALLS, STEPS, found, model, needs, run
from tests.dialects.test_anthropic import TASK, TOOL, results_of

ARN = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/" + CLAUDE


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    clouds.use_own_login(monkeypatch)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with clouds.running(looping_model(5), BEDROCK_KEY, GOOGLE_TOKEN) as host:
        yield host


_open: list[Any] = []


@pytest.fixture(autouse=True)
def _closed_clients() -> Iterator[None]:
    """Close the clients of a test: a stream that broke leaves its connection open."""
    yield
    while _open:
        _open.pop().close()


def bedrock(url: str, key: str | None = BEDROCK_KEY) -> anthropic.AnthropicBedrock:
    made = anthropic.AnthropicBedrock(api_key=key, aws_region=REGION, base_url=url, max_retries=0)
    _open.append(made)
    return made


def vertex(url: str) -> anthropic.AnthropicVertex:
    made = anthropic.AnthropicVertex(
        project_id="p",
        region="europe-west1",
        access_token=GOOGLE_TOKEN,
        base_url=f"{url}/v1",
        max_retries=0,
    )
    _open.append(made)
    return made


def client_of(kind: str, url: str) -> Any:
    return bedrock(url) if kind == "bedrock" else vertex(url)


def run_agent(client: Any, model: str, *, stream: bool = False, steps: int = 5) -> list[Any]:
    """Calls and results until the model answers."""
    messages: list[Any] = [{"role": "user", "content": TASK}]
    answers = []
    for _ in range(steps + 1):
        sent: Any = {"model": model, "max_tokens": 4096, "tools": [TOOL], "messages": messages}
        sent["system"] = "You repair programs."
        if stream:
            with client.messages.stream(**sent) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**sent)
        answers.append(answer)
        content = [block.model_dump(exclude_none=True) for block in answer.content]
        messages = [*messages, {"role": "assistant", "content": content}]
        if found := results_of(answer):
            messages += [{"role": "user", "content": found}]
    return answers


MODELS = {"bedrock": CLAUDE, "vertex": ON_VERTEX}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["bedrock", "vertex"])
def test_an_agent_is_steered_and_recorded(
    gateway_server: Start, host: Host, kind: str, stream: bool
) -> None:
    """Guidance reaches the host; tokens and cost of each call are known when it is complete. What
    the model said is on record, and so is the call itself, in words."""
    server = gateway_server({**settings_for(host), "storage": {"raw_mb": 4}})
    answers = run_agent(client_of(kind, server.url), MODELS[kind], stream=stream)
    assert [a.stop_reason for a in answers] == ["tool_use"] * 5 + ["end_turn"]
    assert len(states(server)) == 6
    assert any(GUIDANCE.encode() in seen.body for seen in host.received)
    with httpx.Client(base_url=server.url) as control:
        (run,) = control.get("/api/runs").json()["runs"]
        steps = control.get(f"/api/runs/{run['id']}").json()["steps"]
        page = f"/dashboard/runs/{run['id']}/steps/{steps[-1]['step_index']}/raw"
        assert until(lambda: "end_turn" in control.get(page).text)
    assert steps[-1]["content"]["reply_text"] == answers[-1].content[0].text
    calls = [step["call"] for step in steps]
    assert all(call["input_tokens"] and call["output_tokens"] for call in calls)
    assert all(call["cost_usd"] > 0 for call in calls)
    assert {call["model_asked"] for call in calls} == {MODELS[kind]}


@pytest.mark.parametrize("mode", ["off", "shadow"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["bedrock", "vertex"])
def test_nothing_differs_from_the_direct_way(
    gateway_server: Start, host: Host, kind: str, stream: bool, mode: str
) -> None:
    """Neither what the host is sent, nor the bytes that it answers."""
    server = gateway_server(settings_for(host, mode))
    direct, through = (_exchanged(host, kind, url, stream) for url in (host.url, server.url))
    assert direct == through


def _exchanged(host: Host, kind: str, url: str, stream: bool) -> list[Any]:
    """What the host was sent by the client, and the bytes that answer it."""
    before = len(host.received)
    run_agent(client_of(kind, url), MODELS[kind], stream=stream, steps=2)
    found: list[Any] = []
    for sent in host.received[before:]:
        names = ("authorization", "content-type", "anthropic-version", "user-agent")
        headers = {name: sent.header(name) for name in names}
        given = {name: value for name, value in headers.items() if value}
        answer = httpx.post(f"{url}{sent.target}", content=sent.body, headers=given)
        found += [sent.target, sent.body, headers]
        found += [answer.status_code, answer.headers["content-type"], answer.content]
    return found


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_the_end_of_frames_is_seen_before_it_is_sent(size: int) -> None:
    """In any split: its last bytes wait until the call is on record. Frames that are damaged are
    no answer."""
    body = {"model": "m", "stream": True}
    stream = BEDROCK.in_envelope(own_answers.messages(body, "message_stop \u00e9" * 9, "1"))
    read = clouds.read_in_parts(BEDROCK, stream, size)
    assert read.completion is not None
    damaged = stream.replace(b"bytes", b"other")
    assert not BEDROCK.read_stream(damaged, json.loads).began


def without_credential(server: AppServer, path: str, **sent: Any) -> httpx.Response:
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9}
    body |= {"messages": [{"role": "user", "content": "Hi"}]}
    return httpx.post(f"{server.url}{path}", json=sent.pop("json", body), **sent)


@pytest.mark.parametrize("model", [CLAUDE, "eu.anthropic.x-v1%3A0", ARN.replace("/", "%2F")])
def test_the_gateway_signs_for_a_client_without_a_credential(
    gateway_server: Start, host: Host, model: str
) -> None:
    """The host checks the signature over the path as it arrived; a throttled call is signed once
    more."""
    host.faults = ["429"]
    server = gateway_server(settings_for(host))
    answer = without_credential(server, f"/model/{model}/invoke?beta=a&alpha=b")
    assert (answer.status_code, answer.headers["x-gateway-attempts"]) == (200, "2")
    assert [seen.target.partition("?")[0] for seen in host.received] == [
        f"/model/{model}/invoke"
    ] * 2
    assert answer.json()["content"]


def test_a_clients_own_signature_is_replaced(gateway_server: Start, host: Host) -> None:
    """It is for the gateway's name, and nothing of it goes on."""
    server = gateway_server(settings_for(host))
    client = anthropic.AnthropicBedrock(
        aws_access_key="AKIAOFTHECLIENT00",
        aws_secret_key="other",
        aws_session_token="session-of-the-client",
        aws_region=REGION,
        base_url=server.url,
    )
    assert run_agent(client, ARN, steps=1)
    (*_, last) = host.received
    assert clouds.ACCESS_KEY in (last.header("authorization") or "")
    assert last.header("x-amz-security-token") is None


@pytest.mark.parametrize(
    ("kind", "fault"), [("bedrock", "cut"), ("bedrock", "exception"), ("vertex", "cut")]
)
def test_a_broken_stream_is_an_error(
    gateway_server: Start, host: Host, kind: str, fault: str
) -> None:
    """Of Bedrock it ends with a frame that the client understands, and is no answer."""
    server = gateway_server(settings_for(host))
    host.faults = [fault]
    with pytest.raises(anthropic.APIError) as caught:
        run_agent(client_of(kind, server.url), MODELS[kind], stream=True, steps=1)
    expected = "too many tokens" if fault == "exception" else "upstream"
    assert expected in str(caught.value)
    with httpx.Client(base_url=server.url) as control:
        until(lambda: bool(control.get("/api/runs").json()["runs"]))  # stored behind the answer
        (run,) = control.get("/api/runs").json()["runs"]
        steps = control.get(f"/api/runs/{run['id']}").json()["steps"]
    assert all(not (step["call"] or {}).get("finish_reason") for step in steps)


def test_a_refusal_of_the_host_is_passed_on(gateway_server: Start, host: Host) -> None:
    """The client's own key is not replaced by the gateway's, and is not sent twice."""
    server = gateway_server(settings_for(host))
    with pytest.raises(anthropic.PermissionDeniedError, match="signature does not match"):
        run_agent(bedrock(server.url, "bedrock-api-key-wrong"), CLAUDE, steps=0)
    assert len(host.received) == 1


@pytest.mark.parametrize(
    "path", ["/model/meta.llama3-1-8b/invoke", f"/model/{CLAUDE}/count-tokens"]
)
@pytest.mark.parametrize("key", [BEDROCK_KEY, None])
def test_other_bodies_and_paths_are_passed_on(
    gateway_server: Start, host: Host, path: str, key: str | None
) -> None:
    """With the client's credential, or the gateway's; they are no step of a run."""
    server = gateway_server(settings_for(host))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": "Hi", "messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
    answer = without_credential(server, path, json=body, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"seen": body})
    runs = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert [run["totals"]["steps"] for run in runs] in ([], [0])


def test_a_count_of_tokens_is_no_step(gateway_server: Start, host: Host) -> None:
    """Vertex AI counts at a model of that name."""
    server = gateway_server(settings_for(host))
    sent: Any = {"model": ON_VERTEX, "messages": [{"role": "user", "content": TASK}]}
    vertex(server.url).messages.count_tokens(**sent)
    assert host.received[-1].path.endswith("/models/count-tokens:rawPredict")
    assert httpx.get(f"{server.url}/api/runs").json()["runs"] == []


KEY = "gateway-key-of-a-tenant"
KEYS = {"auth": {"gateway_keys": {"acme": KEY}}}


@pytest.mark.parametrize(
    ("allowed", "more", "status", "says"),
    [
        (None, {}, 403, "cloud_credentials"),  # the host is not one of AWS
        (False, {}, 403, "cloud_credentials"),
        (True, KEYS, 200, ""),
        (None, KEYS, 403, "cloud_credentials"),
    ],
)
def test_when_the_gateway_signs(
    gateway_server: Start, host: Host, allowed: bool | None, more: Any, status: int, says: str
) -> None:
    """The errors have the form of Bedrock's."""
    upstream = {"cloud_credentials": allowed}
    server = gateway_server(settings_for(host, default_upstream=upstream, **more))
    headers = {"authorization": f"Bearer {KEY}"} if more else {}
    answer = without_credential(server, f"/model/{CLAUDE}/invoke", headers=headers)
    assert answer.status_code == status, answer.text
    if says:
        assert says in answer.json()["message"]
        assert answer.json()["__type"] == "AccessDeniedException"
    assert len(host.received) == (status == 200)
    received = [(seen.target, seen.headers, seen.body) for seen in host.received]
    assert KEY not in str(received)


def test_a_web_page_spends_nothing(gateway_server: Start, host: Host) -> None:
    """Nor does a name that was bound to the gateway's address."""
    server = gateway_server(settings_for(host))
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        for path in (f"/model/{CLAUDE}/invoke", f"/model/{CLAUDE}/converse"):
            answer = without_credential(server, path, headers=headers)
            assert (answer.status_code, host.received) == (403, []), answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["bedrock", "vertex"])
def test_a_deployment_of_another_provider_answers(
    gateway_server: Start, host: Host, upstream: ScriptedUpstream, kind: str, stream: bool
) -> None:
    """Through LiteLLM, in the envelope of the client; its credential does not go there."""
    upstream.script(Reply("From elsewhere."))
    params = {"model": "openai/other", "api_base": upstream.base_url, "api_key": "sk-of-other"}
    deployment = {"model_name": MODELS[kind], "litellm_params": params}
    server = gateway_server(settings_for(host, model_list=[deployment]))
    (answer,) = run_agent(client_of(kind, server.url), MODELS[kind], stream=stream, steps=0)
    assert answer.content[0].text == "From elsewhere."
    assert (upstream.last.header("authorization"), host.received) == ("Bearer sk-of-other", [])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_the_gateway_is_in_the_envelope(
    gateway_server: Start, host: Host, stream: bool
) -> None:
    """Here: that a budget is used up."""
    budget = {"name": "b", "scope": "run", "limits": {"calls": 1}, "stop_with": "answer"}
    server = gateway_server(settings_for(host, budgets=[budget]))
    answers = run_agent(bedrock(server.url), CLAUDE, stream=stream, steps=1)
    assert answers[-1].stop_reason == "end_turn"
    assert "budget" in answers[-1].content[0].text.lower()
    assert len(host.received) == 1


@pytest.mark.slow
@needs("claude")
@pytest.mark.parametrize("cloud", ["BEDROCK", "VERTEX"])
def test_claude_code_leaves_signing_to_the_gateway(
    gateway_server: Start, host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cloud: str
) -> None:
    """As its documentation says for gateways; every step is steered and recorded."""
    clouds.service_account(host, tmp_path / "account.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    host.script = model(CALLS, STEPS)
    server = gateway_server(settings_for(host))
    env = {
        "HOME": str(tmp_path / "home"),
        f"CLAUDE_CODE_USE_{cloud}": "1",
        f"CLAUDE_CODE_SKIP_{cloud}_AUTH": "1",
        "AWS_REGION": REGION,
        "CLOUD_ML_REGION": "europe-west1",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p",
        "ANTHROPIC_BEDROCK_BASE_URL": server.url,
        "ANTHROPIC_VERTEX_BASE_URL": f"{server.url}/v1",
        "ANTHROPIC_MODEL": MODELS[cloud.lower()],
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = [str(found("claude")), "-p", "repair the test", "--allowedTools", "Bash"]
    ended = run(command, env, tmp_path / "work")
    assert ended.returncode == 0, ended
    assert len(states(server)) == STEPS + 1
    assert any(GUIDANCE.encode() in seen.body for seen in host.received)
    signed = [seen.header("authorization") or "" for seen in host.received]
    expected = f"Bearer {GOOGLE_TOKEN}" if cloud == "VERTEX" else "AWS4-HMAC-SHA256"
    assert all(text.startswith(expected) for text in signed)
