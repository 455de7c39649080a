"""Hundreds of streams at once, on one worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from steering_gateway_testing.processes import ROOT, GatewayProcess

pytestmark = pytest.mark.slow

CHUNKS = 30


@pytest.fixture
def slow_upstream() -> Iterator[str]:
    """A provider in a process of its own; its streams last about three seconds."""
    command = [sys.executable, "-m", "steering_gateway_testing", "--chunks", str(CHUNKS)]
    process = subprocess.Popen(
        [*command, "--chunk-delay-ms", "100"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait(120)
    process.stdout.close()


async def read(client: httpx.AsyncClient, number: int) -> str:
    """The text of one stream, and that it ended as it should."""
    body = {"model": "m", "messages": [{"role": "user", "content": str(number)}], "stream": True}
    received = b""
    async with client.stream("POST", "/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_raw():
            received += chunk
    assert received.endswith(b"data: [DONE]\n\n")
    return received.decode()


@pytest.mark.parametrize(
    ("mode", "streams"),
    [
        ("on", 40),
        pytest.param("on", 500, marks=pytest.mark.nightly),
        pytest.param("off", 500, marks=pytest.mark.nightly),
    ],
)
async def test_streams_at_once_complete(
    slow_upstream: str, tmp_path: Path, mode: str, streams: int
) -> None:
    """All of them, each whole, with steering off and on."""
    env = {"OPENAI_BASE_URL": slow_upstream, "GATEWAY_STEERING__MODE": mode}
    with GatewayProcess(tmp_path, env={**env, "GATEWAY_LOGGING__LEVEL": "info"}) as gateway:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=gateway.base_url, timeout=120, limits=limits
        ) as client:
            texts = await asyncio.gather(*(read(client, n) for n in range(streams)))
            assert {text.count("data: ") for text in texts} == {CHUNKS + 3}
            health = await client.get(f"{gateway.url}/healthz")
            assert health.status_code == 200
    assert len(gateway.events("request")) == streams
    assert {line["status"] for line in gateway.events("request")} == {200}
