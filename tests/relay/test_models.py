"""`GET /v1/models`: the configured names, then what the upstream offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream, closed_port
from steering_gateway_testing.hearing import hear
from steering_gateway_testing.official import openai

NAMES: list[dict[str, Any]] = [
    {"model_name": name, "litellm_params": {"model": "openai/x", "api_base": "http://127.0.0.1:9"}}
    for name in ("mine", "scripted-small", "mine")
]
Relay = Callable[..., httpx.Client]


def listed(client: httpx.Client, path: str = "/models") -> list[str]:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.json()["object"] == "list"
    return [entry["id"] for entry in answer.json()["data"]]


def test_without_names_of_its_own_it_is_the_upstreams_list(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """The upstream's answer goes through as it is, errors included."""
    raw = b'{"object": "list", "data": [{"id": "a", "x": 1.0}], "extra": true}'
    there.script(Reply(raw=raw), Fault(FaultKind.UNAUTHORIZED), path="/models")
    assert here.get("/models", headers={"authorization": "Bearer sk-1"}).content == raw
    assert there.last.header("authorization") == "Bearer sk-1"
    assert here.get("/models").status_code == 401


def test_configured_names_come_first_and_once(relay: Relay) -> None:
    """A name that both have is listed once."""
    assert listed(relay({"model_list": NAMES})) == ["mine", "scripted-small", "scripted-model"]


def test_the_official_client_reads_the_merged_list(relay: Relay) -> None:
    """Entries have what a client expects of them."""
    url = str(relay({"model_list": NAMES}).base_url)
    with openai.OpenAI(base_url=url, api_key="k") as client:
        models = list(client.models.list())
    assert [model.id for model in models] == ["mine", "scripted-small", "scripted-model"]
    assert all(model.object == "model" for model in models)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.SERVER_ERROR),
        Fault(FaultKind.UNAUTHORIZED),
        Fault(FaultKind.HTML_ERROR),
        Fault(FaultKind.EMPTY_BODY),
        Fault(FaultKind.DROP_BEFORE_RESPONSE),
        Reply(raw=b"[1, 2]"),
        Reply(raw=b'{"data": [1, {"id": "x"}, null]}'),
        Reply(raw=b'{"data": {"id": 5}}'),
    ],
)
def test_whatever_the_upstream_does_the_configured_names_are_listed(
    upstream: ScriptedUpstream, relay: Relay, fault: Fault | Reply
) -> None:
    """A list that cannot be read adds nothing and breaks nothing."""
    upstream.script(fault, path="/models")
    names = listed(relay({"model_list": NAMES}))
    assert names[:2] == ["mine", "scripted-small"]


def test_an_upstream_that_is_down(relay: Relay) -> None:
    """Refused connections: the configured names, or 502 when there are none."""
    with closed_port() as port:
        down = {"default_upstream": {"api_base": f"http://127.0.0.1:{port}/v1"}}
        assert listed(relay({**down, "model_list": NAMES})) == ["mine", "scripted-small"]
        heard = hear(relay(down), "/models", method="GET")
        assert (heard.status, heard.error["code"]) == (502, "upstream_unreachable")


def test_patterns_are_not_listed(relay: Relay) -> None:
    """A name with a star is a rule, not a model."""
    stars = [{**NAMES[0], "model_name": "openai/*"}, NAMES[0]]
    assert listed(relay({"model_list": stars}))[0] == "mine"


def test_one_model_is_asked_of_the_upstream(there: ScriptedUpstream, here: httpx.Client) -> None:
    """`/v1/models/{id}` passes through."""
    assert here.get("/models/scripted-small").json()["id"] == "scripted-small"
    assert here.get("/models/nothing").status_code == 404


def test_a_configured_name_is_known_here(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Clients look a model up before they use it: the upstream has never heard of ours."""
    client = relay({"model_list": NAMES})
    mine = client.get("/models/mine").json()
    assert (mine["id"], mine["object"]) == ("mine", "model")
    assert not upstream.requests
    assert client.get("/models/nothing").status_code == 404
    assert len(upstream.requests) == 1
