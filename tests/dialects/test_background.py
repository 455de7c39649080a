"""Responses that are made in the background: recorded once, when somebody asks for the answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.calls.call import Call
from gateway.calls.recorder import Recorder
from gateway.errors import UpstreamFailure
from gateway.stores.protocols import StoreError
from gateway.stores.raw_calls_and_answers import AnswerRecord
from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.looping import OFF, STEERING, Start, looping_model, states
from steering_gateway_testing.official import openai
from steering_gateway_testing.patience import until
from tests.dialects.test_openai_responses import OUTPUT, TASK, TOOL, run_by_id

ASKED: dict[str, Any] = {"model": "gpt-5", "input": TASK, "background": True}


@pytest.fixture
def server(gateway_server: Start, upstream: ScriptedUpstream) -> AppServer:
    upstream.default = looping_model(9)
    return gateway_server(STEERING)


@pytest.fixture
def client(server: AppServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="k", base_url=server.base_url, max_retries=0) as made:
        yield made


def totals(server: AppServer) -> dict[str, Any]:
    """Of the newest run."""
    found: dict[str, Any] = httpx.get(f"{server.url}/api/runs").json()["runs"][0]["totals"]
    return found


def spent(server: AppServer) -> tuple[int, int, int, int]:
    """Calls, repeated calls, input and output tokens on record."""
    found = totals(server)
    names = ("calls", "retries", "input_tokens", "output_tokens")
    return tuple(found[name] for name in names)


def left_open(server: AppServer, count: int = 1) -> None:
    """Return when the gateway has noticed that so many answers are still being made."""
    deadline = time.monotonic() + 120
    while len(server.app.runtime.stored_answers.pending) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def last(upstream: ScriptedUpstream) -> str:
    """The newest request to a provider; empty when there was none."""
    return upstream.last.body.decode() if upstream.requests else ""


def polled(client: openai.OpenAI, name: str) -> Any:
    """The finished answer, asked for again and again."""
    answer = client.responses.retrieve(name)
    while answer.status in ("queued", "in_progress"):
        answer = client.responses.retrieve(name)
    return answer


def test_a_run_in_the_background_is_the_same_run(
    gateway_server: Start, server: AppServer, client: openai.OpenAI
) -> None:
    """Steps, readings, guidance and tokens of a run whose answers are polled, one by one."""
    steady = gateway_server(STEERING)
    with openai.OpenAI(api_key="k", base_url=steady.base_url, max_retries=0) as other:
        run_by_id(other, 5)
    sent: dict[str, Any] = {"model": "gpt-5", "tools": [TOOL], "background": True}
    answer = client.responses.create(input=TASK, **sent)
    for _ in range(5):
        assert answer.status == "queued"
        answer = polled(client, answer.id)
        results: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": OUTPUT}
            for item in answer.output
            if item.type == "function_call"
        ]
        answer = client.responses.create(input=results, previous_response_id=answer.id, **sent)
    polled(client, answer.id)
    assert states(server) == states(steady)
    assert spent(server) == spent(steady)
    assert totals(server)["injections"] == totals(steady)["injections"]


def test_it_is_recorded_once(server: AppServer, client: openai.OpenAI) -> None:
    """Its step is there from the start; its tokens come with the first finished answer only."""
    name = client.responses.create(**ASKED).id
    assert (len(states(server)), spent(server)) == (1, (0, 0, 0, 0))
    assert client.responses.retrieve(name).status == "in_progress"
    assert spent(server)[0] == 0
    for _ in range(3):
        assert client.responses.retrieve(name).status == "completed"
        assert spent(server) == (1, 0, 12, 8)
    # Counted when the client has its last byte.
    until(lambda: 'direction="output"} 8.0' in httpx.get(f"{server.url}/metrics").text)


@pytest.mark.parametrize("settings", [STEERING, OFF], ids=["on", "off"])
def test_polls_change_no_byte(
    gateway_server: Start, upstream: ScriptedUpstream, settings: dict[str, Any]
) -> None:
    """Whatever its state, the answer is the upstream's to the byte."""
    upstream.default = Reply("Done.", id="resp_1")
    server = gateway_server(settings)
    url = f"{server.base_url}/responses"
    assert httpx.post(url, json=ASKED).status_code == 200
    for _ in range(2):
        through = httpx.get(f"{url}/resp_1?include=x", headers={"x-mine": "1"})
        assert upstream.last.target == "/v1/responses/resp_1?include=x"
        assert upstream.last.header("x-mine") == "1"
    direct = httpx.get(f"{upstream.base_url}/responses/resp_1")
    assert through.content == direct.content
    assert spent(server)[0] == 1


FAILED = Reply(
    extra={"status": "failed", "error": {"code": "server_error", "message": "It broke."}},
)


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "another one"])
def test_one_that_failed_is_an_error(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, restarted: bool
) -> None:
    """Whoever sees first that the answer failed, the call is on record as failed, with its tokens
    and the reason, and is counted once in the errors."""
    upstream.default = FAILED
    stored = {"storage": {"path": str(tmp_path / "shared.db")}}
    server = gateway_server({**STEERING, **stored})
    name = httpx.post(f"{server.base_url}/responses", json=ASKED).json()["id"]
    if restarted:
        server.stop()
        server = gateway_server({**STEERING, **stored})
    url = f"{server.base_url}/responses/{name}"
    assert httpx.get(url).json()["status"] == "in_progress"
    assert totals(server)["errors"] == 0
    for _ in range(2):
        assert httpx.get(url).json()["error"]["message"] == "It broke."
        found = totals(server)
        assert (found["calls"], found["errors"], found["input_tokens"]) == (1, 1, 12)
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]["id"]
    call = httpx.get(f"{server.url}/api/runs/{run}").json()["steps"][0]["call"]
    assert call["error"] == UpstreamFailure.label
    assert "the upstream reported an error in its answer: server_error" in call["reasons"]
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counted = [line.partition(" ") for line in lines if "errors_total{" in line]
    assert [(UpstreamFailure.label in name, value) for name, _, value in counted] == [(True, "1.0")]


def test_a_stream_that_its_client_left(
    server: AppServer, client: openai.OpenAI, upstream: ScriptedUpstream
) -> None:
    """The answer is made all the same, and recorded when the stream is taken up again."""
    upstream.script(Fault(FaultKind.STALL, reply=Reply("Done.")))
    with client.responses.create(**ASKED, stream=True) as stream:
        name = next(iter(stream)).response.id
    left_open(server)
    with client.responses.retrieve(name, stream=True, starting_after=1) as again:
        kinds = [event.type for event in again]
    assert kinds[-1] == "response.completed"
    assert spent(server) == (1, 0, 12, 8)
    assert client.responses.retrieve(name)
    assert spent(server)[0] == 1


def test_a_stream_that_broke_off(
    server: AppServer, client: openai.OpenAI, upstream: ScriptedUpstream
) -> None:
    """So it is when the upstream's connection was the one that broke."""
    upstream.script(Fault(FaultKind.DROP_MID_BODY, after=2, reply=Reply("Done.", id="resp_1")))
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{server.base_url}/responses", json={**ASKED, "stream": True})
    left_open(server)
    assert polled(client, "resp_1").status == "completed"
    assert spent(server) == (1, 0, 12, 8)


def test_it_is_asked_for_where_it_is_made(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A stream that its client left shows which of several deployments makes the answer."""
    with ScriptedUpstream() as other:
        places = [
            {
                "model_name": "m",
                "litellm_params": {"model": "openai/x", "api_base": p, "api_key": k},
            }
            for p, k in ((upstream.base_url, "one"), (other.base_url, "two"))
        ]
        server = gateway_server({**STEERING, "model_list": places})
        url, names = f"{server.base_url}/responses", iter(range(100))
        for each in (upstream, other):
            each.default = lambda _: Fault(
                FaultKind.STALL, after=2, reply=Reply("Done.", id=f"resp_{next(names)}")
            )
        for number in range(6):
            body = {**ASKED, "model": "m", "input": f"Task {number}.", "stream": True}
            with httpx.stream("POST", url, json=body, timeout=120) as stream:
                assert "response.created" in next(stream.iter_text())
            left_open(server, number + 1)
            keeper = max((upstream, other), key=lambda each: f"Task {number}." in last(each))
            httpx.get(f"{url}/resp_{number}")
            assert keeper.last.target == f"/v1/responses/resp_{number}"


def test_it_is_known_before_it_is_recorded(
    server: AppServer,
    client: openai.OpenAI,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer may be asked for while the record of its call waits for other calls of its
    conversation."""
    record, waiting = Recorder.catch_up, threading.Event()

    async def later(self: Recorder, call: Call) -> None:
        await asyncio.to_thread(waiting.wait, 120)
        await record(self, call)

    monkeypatch.setattr(Recorder, "catch_up", later)
    upstream.script(Fault(FaultKind.DROP_MID_BODY, after=2, reply=Reply("Done.", id="resp_1")))
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{server.base_url}/responses", json={**ASKED, "stream": True})
    left_open(server)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(polled, client, "resp_1")
        while len(server.app.runtime.stored_answers.pending):
            time.sleep(0.01)
        waiting.set()
        assert answer.result(120).status == "completed"
    assert spent(server) == (1, 0, 12, 8)


@pytest.mark.parametrize("fails", [False, True], ids=["slow", "fails"])
def test_an_answer_that_comes_before_its_call_is_kept(
    server: AppServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A call that the store does not know yet, or never will, has not been taken by another
    gateway: it is recorded here."""
    store = server.app.runtime.opened.stores.answers
    keep = store.keep_answer

    async def keep_late(answer: AnswerRecord) -> None:
        await asyncio.sleep(0.3)
        if fails:
            raise StoreError("disk full")
        await keep(answer)

    monkeypatch.setattr(store, "keep_answer", keep_late)
    assert polled(client, client.responses.create(**ASKED).id).status == "completed"
    assert spent(server) == (1, 0, 12, 8)


def test_a_stream_to_its_end(server: AppServer, client: openai.OpenAI) -> None:
    """A background stream that is read to its end is recorded there, and no poll adds to it."""
    with client.responses.create(**ASKED, stream=True) as stream:
        name = list(stream)[-1].response.id
    assert spent(server) == (1, 0, 12, 8)
    polled(client, name)
    assert spent(server) == (1, 0, 12, 8)


def test_what_is_cancelled_or_deleted_has_no_answer(
    server: AppServer, client: openai.OpenAI
) -> None:
    """The call is on record, without tokens, and the conversation goes on from before."""
    name = client.responses.create(**ASKED).id
    assert client.responses.cancel(name).status == "cancelled"
    assert spent(server) == (1, 0, 0, 0)
    client.responses.retrieve(name)
    assert spent(server) == (1, 0, 0, 0)
    name = client.responses.create(**{**ASKED, "input": "Another."}).id
    client.responses.delete(name)
    assert spent(server) == (1, 0, 0, 0)
    assert len(server.app.runtime.stored_answers.pending) == 0


def test_nobody_else_settles_it(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The answer of one tenant is nothing to another; other routes below it are nothing either."""
    upstream.default = Reply("Done.", id="resp_1")
    keys = {"auth": {"gateway_keys": {"a": "key-a", "b": "key-b"}}}
    server = gateway_server({**STEERING, **keys})
    url = f"{server.base_url}/responses"
    mine, other = {"x-gateway-key": "key-a"}, {"x-gateway-key": "key-b"}
    httpx.post(url, json=ASKED, headers=mine)
    for _ in range(3):
        httpx.get(f"{url}/resp_1", headers=other)
    httpx.get(f"{url}/resp_1/input_items", headers=mine)
    assert len(server.app.runtime.stored_answers.pending) == 1
    httpx.get(f"{url}/resp_1", headers=mine)
    assert len(server.app.runtime.stored_answers.pending) == 0
