"""A refusal is read before anything is learned from it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.conversations.steer_request import Client, RefusedPlaces
from gateway.core.guidance_state import Place
from gateway.upstream.dispatch import read_error
from gateway.wire.upstream_errors import Kind
from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING
from steering_gateway_testing.looping import Start
from steering_gateway_testing.patience import ANSWER_S
from tests.examples import by_day
from tests.field.cases import GUIDANCE, looping

REFUSALS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("refusals.json").read_text("utf-8")
)["refusals"]
FINE = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
AGENT = Client("", "agent", "chat", "m")


class Said:
    """An answer of an upstream in one piece."""

    usage: dict[str, Any] | None = None

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.headers: list[tuple[bytes, bytes]] = []
        self._body = body

    async def beginning(self, _limit_s: float, _is_enough: Any) -> bytes:
        return self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        """Nothing is open."""


def test_the_table_is_wide() -> None:
    """Forty refusals of twelve providers at least, each with its source, and of every kind."""
    assert len(REFUSALS) >= 40
    assert len({each["provider"] for each in REFUSALS}) >= 12
    assert {each["kind"] for each in REFUSALS} == {"length", "policy", "shape", "unknown"}
    assert len({each["source"] for each in REFUSALS}) == len(REFUSALS)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: f"{r['provider']}-{r['source']}")
async def test_the_kind_of_a_refusal(refusal: dict[str, Any]) -> None:
    """Read from the words of its body."""
    raw = json.dumps(refusal["body"]).encode()
    kind, _ = await read_error(Said(refusal["status"], raw))
    assert kind == refusal["kind"]


@pytest.mark.parametrize(
    "raw", [b"", b"<html>no</html>", b"[" * 5000, b'{"error": [1]}', b"\xff", b'{"error": {}}']
)
async def test_a_refusal_of_no_known_form_is_of_unknown_kind(raw: bytes) -> None:
    """Nothing is closed by it alone."""
    kind, _ = await read_error(Said(400, raw))
    assert kind == "unknown"


def guided(upstream: ScriptedUpstream) -> list[bool]:
    """Which of the requests so far had guidance."""
    return [GUIDANCE in request.body.decode() for request in upstream.requests]


def ask(server: Any, name: str) -> httpx.Response:
    """A request of a looping run of its own, by one and the same program."""
    body = {"model": "m", **looping({"dialect": "chat"})}
    headers = {"x-conversation-id": name}
    return httpx.post(
        f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=ANSWER_S
    )


@pytest.mark.parametrize(
    "refusal", by_day(REFUSALS, 8), ids=lambda r: f"{r['provider']}-{r['source']}"
)
def test_what_follows_a_refusal_with_guidance(
    gateway_server: Start, upstream: ScriptedUpstream, refusal: dict[str, Any]
) -> None:
    """The request is answered as the client wrote it. The next one is guided, unless the form of
    the first was refused: then the place is closed, which Health says, and a metric counts."""
    upstream.default = Reply(raw=json.dumps(FINE).encode(), content_type="application/json")
    upstream.script(Reply(raw=json.dumps(refusal["body"]).encode(), status=refusal["status"]))
    server = gateway_server({**GUIDING, "router": {"num_retries": 0}})
    assert ask(server, "first").status_code == 200
    assert ask(server, "second").status_code == 200
    is_shape = refusal["kind"] == "shape"
    first, as_written, second = guided(upstream)
    assert (first, as_written, second) == (True, False, not is_shape)
    metrics = httpx.get(f"{server.url}/metrics").text
    scope = "place" if is_shape else "request"
    kind = refusal["kind"]
    assert f'gateway_refused_changes_total{{kind="{kind}",scope="{scope}"}} 1.0' in metrics
    health = httpx.get(f"{server.url}/dashboard/health").text
    assert ("No guidance at" in health) == is_shape


def test_an_unknown_reason_closes_a_place_the_second_time() -> None:
    """Once may be chance; what is too long, or not allowed, never closes one."""
    places = RefusedPlaces()
    here: frozenset[Place] = frozenset({"message"})
    never: list[Kind] = ["length", "policy"]
    assert not any(places.refused(AGENT, here, kind) for kind in never * 3)
    assert not places.refused(AGENT, here, "unknown")
    assert places.closed(AGENT) == frozenset()
    assert places.refused(AGENT, here, "unknown")
    assert places.closed(AGENT) == here


def test_a_closed_place_opens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour; a refusal then closes it once more."""
    now = 1000.0
    monkeypatch.setattr("gateway.conversations.steer_request.time.time", lambda: now)
    places = RefusedPlaces()
    assert places.refused(AGENT, frozenset({"system"}), "shape")
    assert places.listed() == [(AGENT, "system", 4600.0)]
    now += 3601
    assert places.closed(AGENT) == frozenset()
    assert places.listed() == []
    assert places.refused(AGENT, frozenset({"system"}), "shape")
    assert places.closed(AGENT) == {"system"}


def test_an_overflow_in_an_answer_of_success_is_one_too(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Some servers write the refusal under HTTP 200."""
    refused = next(r for r in REFUSALS if r["provider"] == "llama.cpp")["body"]
    upstream.default = Reply(raw=orjson.dumps(FINE), content_type="application/json")
    upstream.script(Reply(raw=orjson.dumps(refused), content_type="application/json"))
    server = gateway_server({**GUIDING, "router": {"num_retries": 0}})
    assert ask(server, "first").json() == FINE
    assert ask(server, "second").json() == FINE
    assert guided(upstream) == [True, False, True]
