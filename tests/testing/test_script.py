"""How a script is used up, and what a scripted model can see."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from steering_gateway_testing import Fault, FaultKind, ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.official import openai

HELLO: Any = [{"role": "user", "content": "hello"}]


def say(client: openai.OpenAI) -> str | None:
    """The text of one completion."""
    return client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content


def test_a_callable_may_choose_a_fault(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """A callable entry can answer with a fault."""
    upstream.script(lambda request: Fault(FaultKind.BAD_REQUEST, message=request.model))
    with pytest.raises(openai.BadRequestError, match="'message': 'm'"):
        say(openai_client)


def test_what_a_callable_raises_is_seen_by_both_sides(openai_client: openai.OpenAI) -> None:
    """The client gets status 500 and the end of the `with` block raises the script's error."""

    def model(request: ReceivedRequest) -> Reply:
        raise KeyError("not in the script")

    def run() -> None:
        with ScriptedUpstream(model) as server:
            client = openai_client.with_options(base_url=server.base_url)
            with pytest.raises(openai.InternalServerError, match="not in the script"):
                say(client)

    with pytest.raises(KeyError, match="not in the script"):
        run()


def test_entries_can_wait_for_a_path(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """Entries for a path serve that path only, whatever the method."""
    upstream.script(Fault(FaultKind.UNAVAILABLE), path="/models")
    assert say(openai_client) == "You said: hello"
    with pytest.raises(openai.InternalServerError):
        openai_client.models.list()
    assert len(openai_client.models.list().data) == 2


def test_a_get_leaves_the_script_alone(upstream: ScriptedUpstream) -> None:
    """Listing models does not use up what is meant for completions."""
    upstream.script(Reply("kept"))
    httpx.get(f"{upstream.base_url}/models")
    assert upstream.pending == 1


def test_reset_forgets(upstream: ScriptedUpstream, openai_client: openai.OpenAI) -> None:
    """After a reset nothing is queued and nothing is recorded."""
    say(openai_client)
    upstream.script(Reply("late"))
    upstream.reset()
    assert (upstream.pending, len(upstream.requests)) == (0, 0)
    assert say(openai_client) == "You said: hello"


def test_a_server_can_be_stopped_twice() -> None:
    """Stopping is idempotent and frees the port."""
    server = ScriptedUpstream()
    server.start()
    port = server.port
    server.stop()
    server.stop()
    with ScriptedUpstream(port=port) as again:
        assert again.port == port


def test_a_taken_port_is_an_error(upstream: ScriptedUpstream) -> None:
    """Starting on a port in use raises in the caller's thread."""
    with pytest.raises(OSError, match="in use"):
        ScriptedUpstream(port=upstream.port).start()
