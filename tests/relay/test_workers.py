"""`server.workers`: several processes on one address and one store."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.observability.metrics import merged
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.hearing import HELLO
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.processes import GatewayProcess, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

STEERED = {"GATEWAY_STEERING__MODE": "on", "GATEWAY_SERVER__DRAIN_S": "20"}


def config(upstream: ScriptedUpstream) -> str:
    """Two workers before the upstream."""
    return f"default_upstream: {{api_base: '{upstream.base_url}'}}\nserver: {{workers: 2}}\n"


def ask(gateway: GatewayProcess, *messages: dict[str, Any]) -> httpx.Response:
    """One request on a connection of its own, which any worker may take."""
    body = {**HELLO, "messages": messages or HELLO["messages"]}
    return httpx.post(f"{gateway.base_url}/chat/completions", json=body, timeout=120)


def answered(metrics: str) -> list[float]:
    """Requests that each worker answered with 200."""
    series = r'gateway_requests_total\{worker="\d",.*route="chat.*status="200"\} (\S+)'
    return [float(count) for count in re.findall(series, metrics)]


def counted(gateway: GatewayProcess, requests: int) -> str:
    """The metrics once all workers tell of so many requests: a worker counts one after its answer,
    and one that is busy is left out of a scrape."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        told = httpx.get(f"{gateway.url}/metrics", timeout=120).text
        if sum(answered(told)) == requests:
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.05)


def test_workers_share_the_address_the_store_and_one_scrape(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A conversation goes on whichever answers; a killed one is replaced; a signal reloads all;
    all drain, with status 0."""
    with GatewayProcess(tmp_path, config(upstream), env=STEERED) as gateway:
        gateway.wait_for("listening", 2)
        assert {line["worker"] for line in gateway.events("listening")} == {0, 1}
        messages: list[dict[str, Any]] = []
        found = []
        for number in range(12):
            messages.append({"role": "user", "content": f"And what about {number}?"})
            found.append(ask(gateway, *messages))
            messages.append(found[-1].json()["choices"][0]["message"])
        assert {answer.status_code for answer in found} == {200}
        assert len({answer.headers["x-gateway-conversation-id"] for answer in found}) == 1
        told = counted(gateway, 12)
        assert set(re.findall(r'worker="(\d+)"', told)) == {"0", "1"}
        assert told.count("# TYPE gateway_requests_total counter") == 1

        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for("config reloaded", 2)

        victim = int(children(gateway.process.pid)[0])
        os.kill(victim, signal.SIGKILL)
        ended = gateway.wait_for("a worker ended, another is started")
        assert ended["status"] == -signal.SIGKILL
        gateway.wait_for("listening", 3)
        assert {ask(gateway).status_code for _ in range(8)} == {200}

        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.end() == 0
        assert len(gateway.events("stopped")) == 2


@pytest.mark.slow
def test_a_start_that_fails_ends_all_workers(tmp_path: Path) -> None:
    """The reason is logged, with the status of one process; settings that cannot be: status 2."""
    (tmp_path / "taken").write_text("not a database " * 100)
    env = {"GATEWAY_SERVER__WORKERS": "2", "GATEWAY_STORAGE__PATH": "taken"}
    ended = run("serve", "--port", "0", directory=tmp_path, env=env)
    assert ended.returncode == 1
    assert "taken" in ended.stderr
    assert "listening" not in ended.stderr
    env["GATEWAY_STORAGE__PATH"] = ":memory:"
    ended = run("serve", "--port", "0", directory=tmp_path, env=env)
    assert ended.returncode == 2
    assert "server.workers: several cannot share storage.path ':memory:'" in ended.stderr


def test_metrics_of_workers_are_one_valid_exposition() -> None:
    """Every family has its head once, every series its worker, whatever a label's value holds."""
    one = b'# HELP a x\n# TYPE a counter\na{l="p } q"} 1.0\nb 2.0\n'
    assert merged({1: one, 0: one}).decode().splitlines() == [
        "# HELP a x",
        "# TYPE a counter",
        'a{worker="0",l="p } q"} 1.0',
        'b{worker="0"} 2.0',
        'a{worker="1",l="p } q"} 1.0',
        'b{worker="1"} 2.0',
    ]


def children(pid: int) -> list[str]:
    """The child processes of a process."""
    tasks = Path(f"/proc/{pid}/task")
    return [c for task in tasks.iterdir() for c in (task / "children").read_text().split()]
