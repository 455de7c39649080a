"""Bodies that are too much to read go out unread; big ones are read in a thread."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.conversations import resolve
from gateway.endpoints.steered import SteeredEndpoint
from gateway.steering.identity import read_request
from gateway.wire.body_prefix import KnownMessages
from gateway.wire.request import BIG_BYTES
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, Agent, trace, worker
from tests.examples import by_day
from tests.live.test_unsteered import counted

Start = Callable[..., AppServer]

PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
SMALL = {"steering": {"max_new_mb": 0.02}}
LONG = "The test failed again. " * 2000


def body_of(dialect: str, text: str, **more: Any) -> bytes:
    """A body with unusual spaces, which a change of its JSON would lose."""
    said = [{"role": "user", "content": text}]
    key = "input" if dialect == "responses" else "messages"
    fields = {"model": "m", key: said, "max_tokens": 64, **more}
    return json.dumps(fields, separators=(" ,", " : ")).encode()


@pytest.mark.parametrize("mode", ["off", "shadow", "on"])
@pytest.mark.parametrize("dialect", by_day(PATHS, 4))
async def test_a_body_over_the_limit_arrives_as_it_was_sent(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    dialect: str,
    mode: str,
) -> None:
    """It is answered; header and metric say that it was not steered, and why."""
    server = gateway_server(SMALL)
    raw = body_of(dialect, LONG)
    headers = {"x-gateway-mode": mode, "content-type": "application/json"}
    answer = await http.post(f"{server.base_url}/{PATHS[dialect]}", content=raw, headers=headers)
    assert (answer.status_code, upstream.last.body) == (200, raw)
    assert answer.headers["x-gateway-unsteered"] == "size"
    assert await counted(http, server, "size", "yes") == 1
    health = (await http.get(f"{server.url}/api/health-summary")).json()
    assert (health["unsteered"], health["unrecorded_calls"]) == ({"size": 1}, {})
    assert (health["calls"], health["input_tokens"] > 0, health["output_tokens"] > 0) == (1, 1, 1)
    assert (
        "too large or too deep to read" in (await http.get(f"{server.url}/dashboard/health")).text
    )
    name = answer.headers["x-gateway-conversation-id"]
    page = (await http.get(f"{server.url}/dashboard/runs/{name}.0")).text
    assert "This call went out unsteered: too large or too deep to read." in page
    short = body_of(dialect, "Hello.")
    answer = await http.post(f"{server.base_url}/{PATHS[dialect]}", content=short, headers=headers)
    assert "x-gateway-unsteered" not in answer.headers


async def _steps(path: Path, conversation: str, run: int = 0) -> list[tuple[int, str]]:
    """Of each recorded call of a run: the index of its step, and why it went out unsteered."""
    steps = (await trace(path, conversation, run)).steps
    return [(step.step_index, step.call.unsteered) for step in steps if step.call is not None]


@pytest.mark.parametrize("stream", by_day([False, True], 1))
@pytest.mark.parametrize("dialect", PATHS)
async def test_calls_that_are_not_read_are_one_run_where_the_client_names_it(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    dialect: str,
    stream: bool,
) -> None:
    """Also after a restart; a call of another agent, or without an id, is a run of its own."""
    path = tmp_path / "runs.db"
    config = {**SMALL, "storage": {"path": str(path)}}
    server = gateway_server(config)
    raw = body_of(dialect, LONG, stream=stream)
    seen = []
    for name in ("one", "one", "other", None, None):
        headers = {"content-type": "application/json"} | (
            {"x-conversation-id": name} if name else {}
        )
        url = f"{server.base_url}/{PATHS[dialect]}"
        answer = await http.post(url, content=raw, headers=headers)
        assert (answer.status_code, answer.headers["x-gateway-unsteered"]) == (200, "size")
        seen.append(answer.headers["x-gateway-conversation-id"])
    assert (seen[0] == seen[1], len(set(seen))) == (True, 4)
    assert await _steps(path, seen[0]) == [(0, "size"), (1, "size")]
    assert await _steps(path, seen[4]) == [(0, "size")]
    calls = [step.call for step in (await trace(path, seen[0])).steps]
    assert all(call and call.input_tokens and call.output_tokens for call in calls)
    server.stop()
    again = gateway_server(config)
    headers = {"content-type": "application/json", "x-conversation-id": "one"}
    answer = await http.post(f"{again.base_url}/{PATHS[dialect]}", content=raw, headers=headers)
    assert answer.headers["x-gateway-conversation-id"] == seen[0]


async def test_calls_that_are_not_read_are_one_run_where_their_messages_go_on(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Without an id; two agents at the same time with equal keys and models are two runs."""
    path = tmp_path / "runs.db"
    server = gateway_server({**SMALL, "storage": {"path": str(path)}})
    said = {name: [{"role": "user", "content": name + LONG}] for name in ("one", "two")}
    seen: dict[str, list[str]] = {"one": [], "two": []}
    for turn in range(3):
        for name, messages in said.items():
            answer = await http.post(
                f"{server.base_url}/chat/completions", json={"model": "m", "messages": messages}
            )
            assert answer.headers["x-gateway-unsteered"] == "size"
            seen[name].append(answer.headers["x-gateway-conversation-id"])
            messages.append({"role": "assistant", "content": f"Turn {turn}."})
            messages.append({"role": "user", "content": LONG})
    assert [len(set(names)) for names in seen.values()] == [1, 1]
    assert seen["one"][0] != seen["two"][0]
    assert await _steps(path, seen["one"][0]) == [(0, "size"), (1, "size"), (2, "size")]
    server.stop()
    again = gateway_server({**SMALL, "storage": {"path": str(path)}})
    answer = await http.post(
        f"{again.base_url}/chat/completions", json={"model": "m", "messages": said["one"]}
    )
    assert answer.headers["x-gateway-identity"] == "new"


async def test_one_call_that_is_not_read_changes_nothing_for_the_next(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """It is recorded as one call more; the calls before and after it are one run, with all steps
    scored and guidance at its place."""
    path = tmp_path / "runs.db"
    upstream.default = worker(9)
    server = gateway_server({**GUIDING, **SMALL, "storage": {"path": str(path)}})
    agent = Agent(http, server.base_url, headers={"x-conversation-id": "one"})
    first = await agent.turn()
    given = upstream.last.messages
    index = server.app.runtime.services.index
    index.bodies.drop(index.get(first.conversation))
    agent.messages[-1]["content"] += LONG
    unread = await agent.turn()
    assert (unread.gateway("unsteered"), unread.conversation) == ("size", first.conversation)
    assert upstream.last.body == agent.sent
    for message in agent.messages:
        message["content"] = (message["content"] or "").replace(LONG, "")
    after = await agent.turn()
    assert (after.conversation, after.gateway("unsteered")) == (first.conversation, None)
    assert upstream.last.messages[: len(given)] == given
    assert after.gateway("step") == "2"
    steps = (await trace(path, first.conversation)).steps
    assert [step.difficulty is not None for step in steps] == [False, True, True]
    assert await _steps(path, first.conversation) == [(0, ""), (1, "size"), (2, "")]


async def test_a_request_that_is_read_takes_over_an_id_of_which_nothing_was_read(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """With and without tools, and its history continues as any other."""
    server = gateway_server(SMALL)
    for name, more in (("one", {}), ("two", {"tools": [{"type": "function"}]})):
        headers = {"content-type": "application/json", "x-conversation-id": name}
        seen = []
        for text in (LONG, "Hello.", "Hello."):
            answer = await http.post(
                f"{server.base_url}/chat/completions",
                content=body_of("chat", text, **more),
                headers={**headers, "x-stainless-retry-count": "1"},
            )
            seen.append(answer.headers["x-gateway-conversation-id"])
        assert len(set(seen)) == 1
        assert answer.headers["x-gateway-identity"] == "retry"


async def test_a_session_that_grows_beyond_the_limit_is_read_on(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """What counts is what is new since the last call."""
    upstream.default = worker(9)
    server = gateway_server(SMALL)
    agent = Agent(http, server.base_url)
    for step in range(6):
        answer = await agent.turn()
        assert (answer.gateway("unsteered"), answer.gateway("step")) == (None, str(step))
        agent.messages[-1]["content"] += "More of the same output. " * 400
    assert len(agent.sent) > 2 * 0.02 * 2**20


async def test_an_answer_to_a_call_that_is_not_read_attracts_no_other(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A conversation that begins with the words of such an answer is another one."""
    upstream.default = Reply("How can I help you?")
    server = gateway_server(SMALL)
    url, kind = f"{server.base_url}/chat/completions", {"content-type": "application/json"}
    unread = await http.post(url, content=body_of("chat", LONG), headers=kind)
    said = [
        {"role": "assistant", "content": "How can I help you?"},
        {"role": "user", "content": "Not at all."},
    ]
    other = await http.post(url, json={"model": "m", "messages": said})
    names = [answer.headers["x-gateway-conversation-id"] for answer in (unread, other)]
    assert len(set(names)) == 2
    assert other.headers["x-gateway-identity"] == "new"


@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
async def test_it_goes_to_the_deployment_that_it_names(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, path: str
) -> None:
    """With that deployment's model and key; nothing else of it changes."""
    params = {"model": "openai/real", "api_base": upstream.base_url, "api_key": "sk-deployment"}
    listed = {"model_list": [{"model_name": "m", "litellm_params": params}]}
    nowhere = {"default_upstream": {"api_base": "http://127.0.0.1:9/v1"}}
    server = gateway_server({**listed, **nowhere})
    raw = body_of("chat", "word " * 250_000, input=[1] * 500_000)
    headers = {"content-type": "application/json"}
    answer = await http.post(f"{server.base_url}/{path}", content=raw, headers=headers)
    assert answer.status_code in (200, 404), answer.text
    assert upstream.last.body == raw.replace(b'"model" : "m"', b'"model" : "real"')
    assert upstream.last.header("authorization") == "Bearer sk-deployment"


async def test_many_values_are_too_much_in_a_smaller_body(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Tiny values hold the interpreter while they are parsed; texts do not, whatever they say."""
    server = gateway_server()
    tool = {"type": "function", "function": {"name": "f"}}
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"x": [{"a": 1}] * 260_000}, "size"),
        ({"tools": [tool] * 12_000}, "size"),
        ({"metadata": dict.fromkeys(map(str, range(100_000)), "")}, None),
        ({"x": "word " * 400_000}, None),
        ({"x": '[{"a": 1}, 2, ' * 100_000}, None),
    ]
    for more, unsteered in cases:
        raw = body_of("chat", "Hello.", **more)
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert answer.headers.get("x-gateway-unsteered") == unsteered
        assert upstream.last.body == raw


def _many(dialect: str, part: dict[str, str], count: int) -> bytes:
    """A body with a message of so many parts."""
    key = "input" if dialect == "responses" else "messages"
    said = {"role": "user", "content": [part] * count}
    return json.dumps({"model": "m", key: [said], "max_tokens": 64}).encode()


@pytest.mark.parametrize("dialect", PATHS)
async def test_many_small_parts_are_too_much_in_a_small_body(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, dialect: str
) -> None:
    """As a whole conversation, and as what is new in one that is known; fewer are read, and as
    many of the length of sentences."""
    server = gateway_server()
    kind = "input_text" if dialect == "responses" else "text"
    empty = {"type": kind, "text": ""}
    sentence = {"type": kind, "text": "The test failed again, as it did before."}
    short = _many(dialect, empty, 10)
    grown = json.loads(short)
    key = "input" if dialect == "responses" else "messages"
    grown[key] += [
        {"role": "assistant", "content": "Well."},
        *json.loads(_many(dialect, empty, 6000))[key],
    ]
    bodies = {
        "few": (_many(dialect, empty, 1990), None),
        "sentences": (_many(dialect, sentence, 3400), None),
        "empty": (_many(dialect, empty, 6000), "size"),
        "short": (short, None),
        "grown": (json.dumps(grown).encode(), "size"),
    }
    seen = {}
    for name, (raw, _) in bodies.items():
        answer = await http.post(
            f"{server.base_url}/{PATHS[dialect]}",
            content=raw,
            headers={"content-type": "application/json"},
        )
        assert (answer.status_code, upstream.last.body[:20]) == (200, raw[:20])
        seen[name] = answer.headers.get("x-gateway-unsteered")
    assert seen == {name: expected for name, (_, expected) in bodies.items()}


@pytest.mark.parametrize("depth", [20_000, 100_000])
async def test_a_body_nested_beyond_the_parser_is_the_upstreams_to_refuse(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, depth: int
) -> None:
    """JSON has no limit of depth; what is no JSON is refused as before.

    From Python 3.14 on the parser reads 20,000 levels."""
    upstream.default = Reply("Hello.")
    server = gateway_server()
    raw = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"x":%s}'
    for deep in (b"[" * depth + b"]" * depth, b"9" * 5000):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw % deep)
        assert (answer.status_code, upstream.last.body) == (200, raw % deep)
        reads = deep.startswith(b"[") and depth <= 20_000 and sys.version_info >= (3, 14)
        assert answer.headers.get("x-gateway-unsteered") == (None if reads else "size")
    answer = await http.post(f"{server.base_url}/chat/completions", content=raw % (b"[" * depth))
    assert (answer.status_code, len(upstream.requests)) == (400, 2)


async def test_a_body_without_a_model_is_refused_as_a_small_one_is(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The error names the field, and nothing is sent."""
    server = gateway_server(SMALL)
    for raw in (
        body_of("chat", LONG, model=None),
        b'{"model": "m", "messages": [' + b"1," * 50_000,
    ):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
    assert not upstream.requests


async def test_a_big_body_is_parsed_and_digested_off_the_loop(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small one is read where requests are served, one of many messages or bytes in a thread; all
    are steered."""
    threads: list[str] = []
    parse = SteeredEndpoint._parse

    async def noted_parse(self: SteeredEndpoint, *args: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)  # the loop's
        return await parse(self, *args, **named)

    def noted_read(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read_request(*args, **kwargs)

    monkeypatch.setattr(SteeredEndpoint, "_parse", noted_parse)
    monkeypatch.setattr(resolve, "read_request", noted_read)
    server = gateway_server()
    said = [{"role": "user", "content": f"Part {n}."} for n in range(1001)]
    many = json.dumps({"model": "m", "messages": said}).encode()
    big = body_of("chat", "word " * (BIG_BYTES // 5))
    for raw in (body_of("chat", "Hello."), many, big):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert answer.headers["x-gateway-step"] == "0"
    loop, *others = threads
    assert [name == loop for name in others] == [True, True, False, True, False]


def _schema(depth: int) -> dict[str, Any]:
    """The schema of a tool that takes objects in objects, as generators write it."""
    if not depth:
        return {"type": "string", "description": "A name.", "enum": ["first", "second", "none"]}
    fields = {f"field_{n}": _schema(depth - 1) for n in range(4)}
    named = {"title": "Fields", "properties": fields, "required": list(fields)}
    return {"anyOf": [{"type": "object", "additionalProperties": False, **named}, {"type": "null"}]}


@pytest.mark.parametrize("dialect", PATHS)
async def test_a_hundred_tools_with_large_schemas_are_read(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, dialect: str
) -> None:
    """In the first call of a session and in the next: what a schema lists is no message. Beside
    them images, and code with quotes, brackets and commas."""
    server = gateway_server()
    url, kind = f"{server.base_url}/{PATHS[dialect]}", {"content-type": "application/json"}
    tools = [
        {"type": "function", "name": f"tool_{n}", "description": "Does it. " * 20, key: _schema(3)}
        for n in range(100)
        for key in ["input_schema" if dialect == "messages" else "parameters"]
    ]
    code = 'call([{"a": "b, c", "d\\": [1, 2, {}]}], "\\ud83d\\n")\n' * 2000
    image = "data:image/png;base64," + "iVBORw0K" * 600_000
    body = json.loads(body_of(dialect, code))
    said = body["input" if dialect == "responses" else "messages"]
    said[0]["content"] = [{"type": "text", "text": code}, {"type": "image", "url": image}]
    seen = set()
    for _ in range(2):
        raw = json.dumps({**body, "tools": tools}).encode()
        answer = await http.post(url, content=raw, headers=kind)
        assert (answer.status_code, answer.headers.get("x-gateway-unsteered")) == (200, None)
        seen.add(answer.headers["x-gateway-conversation-id"])
        said += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": code}]
    assert len(seen) == 1


async def test_a_body_that_is_sent_again_holds_no_values_while_it_is_answered(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Room was found for the values of new messages alone; those of known ones are let go."""
    held = []

    def model(request: ReceivedRequest) -> Reply:
        known = [each for each in gc.get_objects() if isinstance(each, KnownMessages)]
        held.append([len(each.parsed) for each in known])
        return Reply("Done.")

    upstream.default = model
    server = gateway_server()
    given = json.dumps({f"k{number}": number for number in range(50_000)})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    said = [{"role": "user", "content": "Go on."}, {"role": "assistant", "tool_calls": [call]}]
    raw = json.dumps({"model": "m", "messages": said}).encode()
    assert len(raw) > BIG_BYTES
    for _ in range(2):
        answer = await http.post(f"{server.base_url}/chat/completions", content=raw)
        assert "x-gateway-unsteered" not in answer.headers
    assert held == [[], [0]]
