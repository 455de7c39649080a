"""The suite's own guards: no network beyond loopback, no inherited settings."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest
import uvloop

ELSEWHERE = "192.0.2.1"  # TEST-NET-1, RFC 5737: never routed


@pytest.fixture
def forgiven(outside_attempts: list[str]) -> Iterator[None]:
    """Let a test provoke the guard without failing at its end."""
    yield
    assert outside_attempts
    outside_attempts.clear()


def test_a_socket_cannot_leave_the_machine(forgiven: None) -> None:
    """Connecting to an address beyond loopback raises at once, in either way."""
    with socket.socket() as client:
        client.setblocking(False)  # one that is not refused would wait for an answer
        for connect in (client.connect, client.connect_ex):
            with pytest.raises(OSError, match="no network beyond loopback"):
                connect((ELSEWHERE, 80))


def test_names_are_not_resolved(forgiven: None) -> None:
    """Looking up a public name raises at once."""
    with pytest.raises(OSError, match="no network beyond loopback"):
        socket.getaddrinfo("example.org", 443)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_event_loop_gets_round_the_guard(new_loop: object, forgiven: None) -> None:
    """asyncio and uvloop refuse outside connections too."""
    loop = new_loop()  # type: ignore[operator]
    try:
        with pytest.raises(OSError, match="no network beyond loopback"):
            loop.run_until_complete(loop.create_connection(asyncio.Protocol, ELSEWHERE, 80))
    finally:
        loop.close()


def test_provider_settings_are_not_inherited() -> None:
    """No provider key, base URL or proxy of the developer reaches a test."""
    inherited = [n for n in os.environ if n.startswith(("OPENAI_", "ANTHROPIC_", "GATEWAY_"))]
    assert inherited == []
    assert not [name for name in os.environ if name.upper().endswith("_PROXY")]
