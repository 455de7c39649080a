"""Providers that have a host for each region or resource: which one a request goes to, and that no
name of another's is taken for one of theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.config.settings import UpstreamSettings
from gateway.errors import Forbidden, NotFound
from gateway.upstream.seats import Seats
from steering_gateway_testing.processes import GatewayProcess
from tests.upstream.intercepting import InterceptingProxy

OURS = Seats(UpstreamSettings(), {"AWS_REGION": "us-west-2"})
HOSTS = {
    "bedrock-runtime.eu-west-1.amazonaws.com": "bedrock",
    "bedrock-runtime-fips.us-gov-west-1.amazonaws.com": "bedrock",
    "aiplatform.googleapis.com": "vertex",
    "northamerica-northeast1-aiplatform.googleapis.com": "vertex",
    "europe-west12-aiplatform.googleapis.com": "vertex",
    "aiplatform.eu.rep.googleapis.com": "vertex",
    "my-company.openai.azure.com": "azure",
    "x1.services.ai.azure.com": "azure",
    "x1.cognitiveservices.azure.com": "azure",
}
STRANGERS = [
    "evil.test",
    "bedrock-runtime.eu-west-1.amazonaws.com.evil.test",
    "evil.test.bedrock-runtime.eu-west-1.amazonaws.com",
    "bedrock-runtime.evil.test.amazonaws.com",
    "bedrock-runtime-eu-west-1.amazonaws.com",
    "bedrock-runtime.eu-west-1.amazonaws.com.",
    "bedrock-runtime.eu-west-1xamazonaws.com",
    "xbedrock-runtime.eu-west-1.amazonaws.com",
    "bedrock.eu-west-1.amazonaws.com",
    "my-bucket.s3.eu-west-1.amazonaws.com",
    "ec2-1-2-3-4.eu-west-1.compute.amazonaws.com",
    "abc.execute-api.eu-west-1.amazonaws.com",
    "evil.aiplatform.googleapis.com",
    "storage.googleapis.com",
    "evil-us-east1-aiplatform.googleapis.com",
    "a.b.openai.azure.com",
    "-a.openai.azure.com",
    "openai.azure.com",
    ".openai.azure.com",
    "x.openai.azure.com.evil.test",
    "xopenai.azure.com",
    "x.blob.core.windows.net",
    "x.services.ai.azure.com\n",
    "127.0.0.1",
    "localhost",
]
WRITTEN = [
    "mine@x.openai.azure.com",
    "x.openai.azure.com@evil.test",
    "x.openai.azure.com%40evil.test",
    "x.openai.azure.com:444",
    "x.openai.azure.com%2f@evil.test",
    "evil.test%2fx.openai.azure.com",
    "evil.test%3fx.openai.azure.com",
    "evil.test%23x.openai.azure.com",
    "%78.openai.azure.com",
    "[::1]",
    "x.openai.azure.com;evil.test",
]
"""Texts in a host's place that some reader would take for another one's name."""


@pytest.mark.parametrize(("host", "api"), HOSTS.items())
def test_one_row_is_for_every_host_of_a_family(host: str, api: str) -> None:
    """The client names it in any case; the path is the provider's."""
    seat = OURS.of("/model/m/invoke", [], f"/at/{host.upper()}/model/m/invoke")
    assert seat is not None
    assert (seat.api, str(seat.base), seat.path) == (api, f"https://{host}", "/model/m/invoke")


@pytest.mark.parametrize("host", STRANGERS)
def test_no_other_host_is_of_a_family(host: str) -> None:
    """Whatever it begins or ends with."""
    with pytest.raises(Forbidden, match="names no host of Azure"):
        OURS.of("/v1/chat/completions", [], f"/at/{host}/v1/chat/completions")


def test_a_base_of_the_operators_is_not_gone_round() -> None:
    """It has all requests of its API."""
    ours = Seats(UpstreamSettings(bedrock_api_base="https://own.example"), {})
    with pytest.raises(Forbidden, match=r"default_upstream\.bedrock_api_base is set"):
        ours.of("/model/m", [], "/at/bedrock-runtime.eu-west-1.amazonaws.com/model/m")
    other = ours.of("/v1/m", [], "/at/x.services.ai.azure.com/anthropic/v1/m")
    assert str(other and other.base) == "https://x.services.ai.azure.com/anthropic/v1"


ARN = "arn:aws:bedrock:ap-southeast-2:123456789012:application-inference-profile/x"
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIAX/20261130/eu-central-1/bedrock/aws4_request, Signature=0"
FORGED = "AWS4-HMAC-SHA256 Credential=AKIAX/20261130/eu.evil.test-1/bedrock/aws4_request"


@pytest.mark.parametrize(
    ("model", "signature", "region"),
    [
        ("m", "", "us-west-2"),
        ("m", "Bearer ABSKx", "us-west-2"),
        ("m", SIGNED, "eu-central-1"),
        ("m", SIGNED.replace("/bedrock/", "/s3/"), "us-west-2"),
        ("m", FORGED, "us-west-2"),
        (ARN, "", "ap-southeast-2"),
        (ARN, SIGNED, "ap-southeast-2"),
        (ARN.replace("ap-southeast-2", "evil.test/"), "", "us-west-2"),
    ],
)
def test_a_request_of_bedrock_goes_to_its_own_region(
    model: str, signature: str, region: str
) -> None:
    """A signature and the ARN of a model say for which one they are."""
    path = f"/model/{quote(model, safe='')}/converse"
    seat = OURS.of(path, [(b"authorization", signature.encode())])
    assert seat is not None
    assert seat.base.host == f"bedrock-runtime.{region}.amazonaws.com"
    assert seat.path == path


def test_azure_without_a_host_is_refused() -> None:
    """The answer says how the host is named."""
    with pytest.raises(NotFound, match=r"/at/NAME\.openai\.azure\.com/openai"):
        OURS.of("/openai/deployments/d/chat/completions", [])


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(client, proxy): of a gateway that has a deployment, and reaches every host by the proxy"""
    folder = tmp_path_factory.mktemp("families")
    listed = [{"model_name": "listed", "litellm_params": {"model": "openai/x", "api_key": "own"}}]
    env = {"AWS_BEARER_TOKEN_BEDROCK": "ABSKof-the-operator"}
    with (
        InterceptingProxy(folder) as proxy,
        GatewayProcess(folder, json.dumps({"model_list": listed}), env=env | proxy.env) as gateway,
        httpx.Client(base_url=gateway.url, timeout=120, trust_env=False) as client,
    ):
        yield client, proxy


USER = {"role": "user", "content": "Do it."}
CHAT: dict[str, Any] = {"model": "m", "messages": [USER]}
SENT = [
    ("POST", "x.openai.azure.com/openai/v1/chat/completions", CHAT, "api-key"),
    ("POST", "x.openai.azure.com/openai/v1/responses?a=b", {"model": "m", "input": "x"}, "api-key"),
    ("POST", "x.openai.azure.com/openai/v1/embeddings", {"model": "m", "input": "x"}, "api-key"),
    ("GET", "x.openai.azure.com/openai/v1/models", None, "api-key"),
    ("POST", "x.openai.azure.com/openai/deployments/d/chat/completions", CHAT, "api-key"),
    ("POST", "x.openai.azure.com/openai/deployments/listed/chat/completions", CHAT, "api-key"),
    ("POST", "x.openai.azure.com/openai/deployments/d/embeddings?api-version=1", CHAT, "api-key"),
    ("POST", "x.openai.azure.com/openai/v1/chat/completions", CHAT, "authorization"),
    (
        "POST",
        "y.services.ai.azure.com/anthropic/v1/messages",
        {**CHAT, "max_tokens": 9},
        "x-api-key",
    ),
    (
        "POST",
        "bedrock-runtime.eu-west-1.amazonaws.com/model/m/invoke",
        {**CHAT, "max_tokens": 9},
        "",
    ),
    (
        "POST",
        "bedrock-runtime.eu-west-1.amazonaws.com/openai/v1/chat/completions",
        CHAT,
        "authorization",
    ),
    (
        "POST",
        "us-east5-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/anthropic"
        "/models/m:rawPredict",
        {**CHAT, "max_tokens": 9},
        "authorization",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "address", "body", "header"), SENT)
def test_a_client_reaches_the_host_that_it_names(
    reached: Any, method: str, address: str, body: Any, header: str
) -> None:
    """With the provider's own path, and with the client's own credential alone."""
    client, proxy = reached
    proxy.sent.clear()
    given = {header: "Bearer mine-1"} if header else {}
    client.request(method, f"/at/{address}", json=body, headers=given)
    assert proxy.sent
    host, _, target = address.partition("/")
    for sent in proxy.sent:
        assert sent.host == host
        head = sent.content.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(f"{method} /{target} http/1.1\r\n".lower().encode())
        assert (b"mine-1" in head) == bool(header)
        assert (b"abskof-the-operator" in head) == (not header)
        assert b"bearer own" not in head


@pytest.mark.slow
@pytest.mark.parametrize("place", [*STRANGERS[:-3], *WRITTEN])
def test_nothing_is_sent_for_a_host_of_nobodys(reached: Any, place: str) -> None:
    """Refused before anything is sent, with the client's credential or the gateway's."""
    client, proxy = reached
    proxy.sent.clear()
    for rest in ("/openai/v1/chat/completions", "/v1/models", "/model/m/invoke", "/v1/listed"):
        for headers in ({"api-key": "mine-1"}, {}):
            answer = client.post(f"/at/{place}{rest}", json=CHAT, headers=headers)
            assert answer.status_code in (400, 403, 404), (rest, answer.text)
    assert proxy.sent == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["dashboard", "api/runs", "metrics", "healthz", "at/x.openai.azure.com/v1/models", ""]
)
def test_no_path_of_the_gateways_own_is_behind_a_host(reached: Any, path: str) -> None:
    """A reverse proxy that keeps people from them by their beginning goes on doing so."""
    client, proxy = reached
    proxy.sent.clear()
    assert client.get(f"/at/x.openai.azure.com/{path}").status_code == 404
    assert proxy.sent == []
