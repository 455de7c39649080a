"""The fixtures that every other test builds on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.processes import GatewayProcess

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def test_the_gateway_under_test_talks_to_the_scripted_upstream(
    upstream: ScriptedUpstream, gateway_server: Callable[..., AppServer]
) -> None:
    """Without settings, a request to the gateway reaches the scripted upstream and its reply us."""
    upstream.script(Reply("through"))
    server = gateway_server({"steering": {"mode": "off"}})
    answer = httpx.post(f"{server.base_url}/chat/completions", json=HELLO)
    assert answer.json()["choices"][0]["message"]["content"] == "through"
    assert upstream.last.json == HELLO


def test_two_gateways_run_side_by_side(
    upstream: ScriptedUpstream, gateway_server: Callable[..., AppServer]
) -> None:
    """Each call of the factory starts another gateway with settings of its own."""
    with ScriptedUpstream(Reply("other")) as other:
        servers = (
            gateway_server(),
            gateway_server({"default_upstream": {"api_base": other.base_url}}),
        )
        answers = [httpx.post(f"{s.base_url}/chat/completions", json=HELLO) for s in servers]
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts == ["You said: hello", "other"]


def test_steering_takes_its_time_in_tests(
    upstream: ScriptedUpstream, gateway_server: Callable[..., AppServer], tmp_path: Path
) -> None:
    """No builder of gateways leaves the deadline of 50 ms, which a busy machine would miss."""
    steered = {"steering": {"mode": "on"}}
    servers = [
        gateway_server(),
        gateway_server(steered),
        a_gateway(upstream.base_url, tmp_path, steered),
    ]
    deadlines = {server.app.runtime.settings.steering.deadline_ms for server in servers}
    assert deadlines == {DEADLINE_MS}
    process = GatewayProcess(tmp_path, env={"GATEWAY_STEERING__MODE": "on"})
    assert float(process.env["GATEWAY_STEERING__DEADLINE_MS"]) == DEADLINE_MS
