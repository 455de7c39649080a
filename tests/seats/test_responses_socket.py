"""Responses over a WebSocket: real sockets, with the gateway in between."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import httpx
import pytest
import uvloop
from wsproto.events import TextMessage

from gateway.buffered_bytes import Room, Share
from gateway.config.settings import ServerSettings
from gateway.core.guidance_text import FRAME_OPEN
from gateway.steering.experiments import ModeOfRuns, Pilot
from gateway.upstream.websocket import MessageSide
from steering_gateway_testing import AppServer
from steering_gateway_testing.agents import GUIDING
from steering_gateway_testing.loopback import listening
from steering_gateway_testing.patience import ANSWER_S
from tests.seats.socket_provider import Client, Provider, answer, create, message, result, running

Start = Callable[..., AppServer]
KEY = {"authorization": "Bearer sk-mine"}


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """A running provider."""
    async with running() as provider:
        yield provider


@pytest.fixture
async def connect(gateway_server: Start, provider: Provider) -> AsyncIterator[Callable[..., Any]]:
    """Start a gateway before the provider, or ask the last one, and open a connection to it."""
    started: list[AppServer] = []
    opened: list[Client] = []
    async with aiohttp.ClientSession() as session:

        async def open_one(
            settings: dict[str, Any] | None = None,
            path: str = "/v1/responses",
            headers: dict[str, str] = KEY,
            **more: Any,
        ) -> Client:
            if settings is not None or not started:
                upstream = {
                    "api_base": f"{provider.url}/v1",
                    "chatgpt_api_base": f"{provider.url}/backend-api",
                }
                mapping = {"default_upstream": upstream, **(settings or {})}
                started.append(await asyncio.to_thread(gateway_server, mapping))
            url = started[-1].url
            socket = await session.ws_connect(
                url + path, headers=headers, max_msg_size=0, autoping=False, **more
            )
            client = Client(socket)
            client.url, client.server = url, started[-1]
            opened.append(client)
            return client

        yield open_one
        for client in opened:
            client.socket._response.close()


def calls(url: str) -> list[dict[str, Any]]:
    """The calls on record, of all runs."""
    found: list[dict[str, Any]] = []
    for run in httpx.get(f"{url}/api/runs").json()["runs"]:
        trace = httpx.get(f"{url}/api/runs/{run['id']}").json()
        found += [
            {**step["call"], "run": run["id"], "task": run["task_preview"]}
            for step in trace["steps"]
            if step["call"]
        ]
    return found


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition of the provider's or the record's."""
    deadline = time.monotonic() + ANSWER_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def turns(client: Client, count: int, **more: Any) -> list[list[dict[str, Any]]]:
    """A run of so many calls, in which each message has only the new items."""
    events = await client.ask(create(message("List the files."), **more))
    all_events = [events]
    for _ in range(count - 1):
        earlier = events[-1]["response"]["id"]
        events = await client.ask(create(result(events), previous_response_id=earlier, **more))
        all_events.append(events)
    return all_events


@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_messages_cross_unchanged(
    mode: str, connect: Callable[..., Any], provider: Provider
) -> None:
    """Both ways, byte for byte; events of no answer, pings and the closing code, too."""
    provider.close_with = None
    client = await connect({"steering": {"mode": mode}})
    sent = create(message("é" * 10))
    await client.ask(sent)
    assert provider.texts == [json.dumps(sent)]
    assert client.texts == provider.sent
    await client.socket.send_str('{"type": "response.cancel"}')
    assert await client.socket.receive_json() == {"type": "noted", "of": "response.cancel"}
    await client.socket.ping(b"are you there")
    assert (await client.socket.receive()).data == b"are you there"
    await client.socket.send_bytes(b"\x00\x01")
    assert await client.socket.receive_bytes() == b"\x00\x01"
    await client.socket.close(code=4001)
    await until(lambda: provider.closed)
    assert provider.closed == [4001]
    head = provider.heads[0]
    assert head.headers["authorization"] == "Bearer sk-mine"
    assert ("sec-websocket-extensions" in head.headers) is False or mode == "off"


async def test_events_of_no_answer_keep_their_place(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """What the provider sends beside an answer reaches the client where it was sent, also behind
    the answer's end, and before the next one."""

    def script(body: dict[str, Any]) -> list[dict[str, Any]]:
        limits = [{"type": "codex.rate_limits", "at": n} for n in range(40)]
        created, *items, completed = answer(body, provider.number)
        return [limits[0], created, *limits[1:20], *items, *limits[20:39], completed, limits[39]]

    provider.script = script
    client = await connect({"steering": {"mode": "shadow"}})
    for number in range(1, 4):
        await client.ask(create(message("List the files.")))
        client.texts.append(await client.socket.receive_str(timeout=ANSWER_S))
        assert client.texts == provider.sent
        assert len(client.texts) == 43 * number


@pytest.mark.parametrize("closes", ["client", "provider"])
async def test_a_socket_that_closes_in_an_answer_leaves_nothing_in_the_log(
    connect: Callable[..., Any],
    provider: Provider,
    closes: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither an error nor a task that nobody has waited for."""
    client = await connect({"steering": {"mode": "shadow"}})
    for _ in range(20):
        if closes == "client":
            await client.socket.send_str(json.dumps(create(message("List the files."))))
            await client.socket.receive_str(timeout=ANSWER_S)
            client.socket._response.close()
        else:
            provider.cut_after = 2
            await client.socket.send_str(json.dumps(create(message("List the files."))))
            while (await client.socket.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        client = await connect()
    await until(lambda: len(provider.closed) >= 20)
    gc.collect()
    assert [r.getMessage() for r in caplog.records if r.exc_info or r.levelname == "ERROR"] == []


def test_a_closed_connection_takes_no_message() -> None:
    """On the loop that serves, whose closed transports refuse to be written to."""

    async def send_to_a_closed_one() -> list[bool]:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with listening(hold) as port:
            streams = await asyncio.open_connection("127.0.0.1", port)
            side = MessageSide(streams, 1, Share(Room(), ServerSettings()), asks=True)
            sent = [await side.send(TextMessage("one"))]
            side.close()
            await streams[1].wait_closed()
            return [*sent, await side.send(TextMessage("two"))]

    assert uvloop.run(send_to_a_closed_one()) == [True, False]


async def test_ten_turns_are_one_conversation(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """Nothing is stored, and each message has only the new items: one run, ten calls, all tokens;
    what the newest message contains is on the record of its step."""
    client = await connect()
    await turns(client, 10)
    found = calls(client.url)
    assert len({call["run"] for call in found}) == 1
    assert [call["input_tokens"] for call in found] == [50 + n for n in range(1, 11)]
    assert {call["model_served"] for call in found} == {"gpt-5.2-codex"}


async def test_a_request_that_only_prepares_the_next(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """Codex prepares a connection without generating: no call of the run, but its beginning."""
    client = await connect()
    warm = await client.ask(create(message("List the files."), generate=False))
    earlier = warm[-1]["response"]["id"]
    events = await client.ask(create(previous_response_id=earlier))
    await client.ask(create(result(events), previous_response_id=events[-1]["response"]["id"]))
    found = calls(client.url)
    assert [call["input_tokens"] for call in found] == [52, 53]
    assert {call["task"] for call in found} == {"List the files."}


async def test_advice_goes_to_the_end_of_a_result(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """Once each, because the connection keeps its items; rules go into the first instructions, and
    the answer repeats the client's."""
    client = await connect(GUIDING)
    events = await turns(client, 4)
    assert any(FRAME_OPEN in body["instructions"] for body in provider.bodies)
    given = [
        item["output"] for body in provider.bodies for item in body["input"] if "output" in item
    ]
    advice = [text for text in given if FRAME_OPEN in text]
    assert advice
    assert len({text.partition(FRAME_OPEN)[2] for text in advice}) == len(advice)
    repeated = {e["response"]["instructions"] for es in events for e in es if "response" in e}
    assert repeated == {"You are a coding agent."}
    rest = [{k: v for k, v in b.items() if k != "instructions"} for b in provider.bodies]
    assert rest[0] == {
        k: v for k, v in create(message("List the files.")).items() if k != "instructions"
    }


async def test_an_applied_mode_counts_though_the_config_says_off(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """Without a pilot its events are relayed unread; with the mode given after one, its guidance is
    there."""
    off = {**GUIDING, "steering": {**GUIDING.get("steering", {}), "mode": "off"}}
    client = await connect(off)
    await turns(client, 4)
    assert FRAME_OPEN not in json.dumps(provider.bodies)
    on = ModeOfRuns(mode="on")
    pilot = Pilot(id="p", runs=on, windows=((0.0, 1.0),), most=1, over=True, applied=(on,))
    client.server.app.runtime.opened.workloads.pilot = pilot
    await turns(await connect(), 4)
    assert any(FRAME_OPEN in body["instructions"] for body in provider.bodies)


async def test_a_refused_change_is_sent_as_written(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """ChatGPT's backend may refuse instructions that it does not know: the client sees nothing."""

    def strict(body: dict[str, Any]) -> list[dict[str, Any]]:
        if FRAME_OPEN in body["instructions"]:
            error = {"type": "invalid_request_error", "message": "Instructions are not valid"}
            return [{"type": "error", "status": 400, "error": error}]
        return answer(body, provider.number)

    provider.script = strict
    client = await connect(GUIDING)
    events = await turns(client, 4)
    assert [es[-1]["type"] for es in events] == ["response.completed"] * 4
    refused = [body for body in provider.bodies if FRAME_OPEN in body["instructions"]]
    assert len(refused) == 1
    assert len(calls(client.url)) == 4


async def test_a_refusal_is_given_as_it_came(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """The handshake's by HTTP, a message's as its event; the connection goes on."""
    error = {"type": "error", "status": 429, "error": {"code": "x", "message": "slow"}}
    client = await connect()
    provider.script = lambda _: [dict(error)]
    await client.ask(create(message("a")))
    assert client.texts == provider.sent
    provider.script = None
    assert (await client.ask(create(message("a"))))[-1]["type"] == "response.completed"
    provider.refusal = 403, {"error": {"message": "no"}}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await connect()
    assert refused.value.status == 403


async def test_a_budget_stops_a_message_and_not_the_connection(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """As an error event with the status of HTTP, before the provider is asked."""
    budgets = [{"name": "two", "scope": "tenant", "limits": {"calls": 2}}]
    client = await connect({"budgets": budgets})
    await turns(client, 2)
    for _ in range(2):
        (event,) = await client.ask(create(message("more")))
        assert (event["type"], event["status"]) == ("error", 429)
        assert event["error"]["code"] == "budget_exceeded"
    assert len(provider.texts) == 2
    await client.socket.send_str('{"type": "response.append", "input": []}')
    (event,) = await client.events()
    assert event["status"] == 400


async def test_large_and_fragmented_messages(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """A message of 5 MB, and one in many frames."""
    client = await connect({"steering": {"mode": "shadow"}})
    large = create(message("word " * 2**20))
    await client.ask(large)
    text = json.dumps(create(message("in pieces")))
    writer = client.socket._writer
    for start in range(0, len(text), 100):
        piece, last = text[start : start + 100].encode(), start + 100 >= len(text)
        opcode = aiohttp.WSMsgType.TEXT if start == 0 else aiohttp.WSMsgType.CONTINUATION
        writer.transport.write(_frame(piece, int(opcode), last=last))
    await client.events()
    assert provider.texts == [json.dumps(large), text]
    assert client.texts == provider.sent


def _frame(data: bytes, opcode: int, *, last: bool) -> bytes:
    """A frame of a client, masked with zeros."""
    return bytes([0x80 * last | opcode, 0x80 | len(data), 0, 0, 0, 0]) + data


async def test_a_message_over_the_limit(connect: Callable[..., Any], provider: Provider) -> None:
    """It ends the connection with the code for that, and the provider does not get it."""
    client = await connect({"server": {"max_body_mb": 1}})
    await client.socket.send_str("x" * 2**21)
    last = await client.socket.receive()
    assert (last.type, last.data) == (aiohttp.WSMsgType.CLOSE, 1009)
    await until(lambda: provider.closed)
    assert provider.texts == []


async def test_the_provider_is_cut_in_an_answer(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """The client gets what came, no event of the gateway's, and the end without a code."""
    client = await connect({"steering": {"mode": "shadow"}})
    provider.cut_after = 2
    await client.socket.send_str(json.dumps(create(message("a"))))
    got = [await client.socket.receive_str() for _ in range(2)]
    assert got == provider.sent
    last = await client.socket.receive()
    assert last.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    await until(lambda: calls(client.url))
    (call,) = calls(client.url)
    assert call["error"] == "malformed"


async def test_the_provider_closes_with_a_code(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """After an answer, which the client gets whole."""
    provider.close_with = 4321, b"enough"
    client = await connect()
    await client.ask(create(message("a")))
    last = await client.socket.receive()
    assert (last.type, last.data, last.extra) == (aiohttp.WSMsgType.CLOSE, 4321, "enough")


async def test_the_client_is_gone_in_an_answer(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """The provider's connection is closed, and the call recorded as cut."""
    client = await connect()
    provider.held.clear()
    await client.socket.send_str(json.dumps(create(message("a"))))
    await until(lambda: provider.texts)
    client.socket._writer.transport.abort()
    provider.held.set()
    await until(lambda: provider.closed)
    await until(lambda: calls(client.url))
    (call,) = calls(client.url)
    assert call["output_tokens"] in (None, 0)


async def test_two_connections_and_two_streams(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """Threads do not mix: on two connections, and on one that carries two streams at once."""
    one = await connect()
    two = await connect()
    await asyncio.gather(turns(one, 3), turns(two, 3, thread="thread-2"))
    provider.held.clear()
    for number, stream in enumerate(("a", "b")):
        body = create(message(f"task {stream}"), thread=f"thread-{3 + number}", stream_id=stream)
        await one.socket.send_str(json.dumps(body))
    provider.held.set()
    events = [*await one.events(), *await one.events()]
    assert {event["stream_id"] for event in events} == {"a", "b"}
    found = calls(one.url)
    assert len(found) == 8
    assert len({call["run"] for call in found}) == 4


async def test_a_login_goes_to_chatgpt_alone(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """By the path, or by the header on OpenAI's path."""
    login = {"authorization": "Bearer a-login", "chatgpt-account-id": "account"}
    client = await connect(path="/backend-api/codex/responses", headers=login)
    await turns(client, 2)
    client = await connect(path="/v1/responses", headers=login)
    await turns(client, 1, thread="thread-2")
    assert {head.path for head in provider.heads} == {"/backend-api/codex/responses"}
    assert {head.headers["chatgpt-account-id"] for head in provider.heads} == {"account"}
    assert len(calls(client.url)) == 3


async def test_a_model_of_another_host_keeps_to_http(
    connect: Callable[..., Any], provider: Provider
) -> None:
    """A connection has one host: what a deployment elsewhere serves is refused."""
    elsewhere = {"model": "openai/x", "api_base": "http://127.0.0.1:9/v1", "api_key": "sk-other"}
    client = await connect({"model_list": [{"model_name": "far", "litellm_params": elsewhere}]})
    (event,) = await client.ask(create(message("a"), model="far"))
    assert event["status"] == 426
    assert (await client.ask(create(message("a"))))[-1]["type"] == "response.completed"
    assert len(provider.texts) == 1


async def test_a_gateway_key_alone_is_no_credential(
    gateway_server: Start, provider: Provider
) -> None:
    """Over HTTP its model's own deployment can be asked."""
    key = "k" * 40
    settings = {
        "default_upstream": {"api_base": f"{provider.url}/v1"},
        "auth": {"gateway_keys": {"team": key}},
    }
    server = await asyncio.to_thread(gateway_server, settings)
    asked = {"authorization": f"Bearer {key}", "connection": "Upgrade", "upgrade": "websocket"}
    refused = await asyncio.to_thread(httpx.get, f"{server.url}/v1/responses", headers=asked)
    assert refused.status_code == 426
    assert not provider.heads
