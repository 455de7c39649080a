"""Gemini's generateContent: histories, answers in three forms, guidance, deployments, errors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.edits import AppendToResult, Edit, SystemAppend
from gateway.dialects import GEMINI
from gateway.dialects.gemini import chat_messages
from gateway.steering.transcript.steps import extract
from gateway.wire.prefix_hash import extend, start_state
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.hearing import hear
from steering_gateway_testing.looping import GUIDANCE, OFF, STEERING, Start, states
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall
from tests.dialects.taps import Tap
from tests.dialects.test_agents import THOUGHT, found, needs, run
from tests.dialects.test_all_faults import BEFORE, LIMITS, RELAYED, RELAYED_STREAMS, a_fault

SHELL = "run_shell_command"
MODEL = "/v1beta/models/gemini-2.5-pro"
VERTEX = "/v1beta1/projects/p/locations/eu-x1/publishers/google/models/gemini-2.5-pro"
FORMS = ("generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent")
CALL = Reply(
    "Maybe it is stale, I am not sure.",
    reasoning="It may be the cache.",
    tool_calls=(ToolCall(SHELL, {"command": "pytest"}),),
    signature="c2ln",
)


def body_of(text: str = "Mend the test.") -> dict[str, Any]:
    """A request as Gemini CLI opens a conversation with it."""
    return {
        "contents": [{"parts": [{"text": text}], "role": "user"}],
        "systemInstruction": {"parts": [{"text": "You are Gemini CLI."}], "role": "user"},
        "tools": [{"functionDeclarations": [{"name": SHELL, "parametersJsonSchema": {}}]}],
        "generationConfig": {"temperature": 1, "topP": 0.95, "thinkingConfig": {}},
    }


def serve(start: Start, upstream: ScriptedUpstream, **settings: Any) -> AppServer:
    own = {"api_base": upstream.base_url, "gemini_api_base": upstream.url}
    return start(
        {**STEERING, "default_upstream": {**own, "vertex_api_base": upstream.url}, **settings}
    )


def chunks_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The objects of an answer in any of the three forms."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = answer.text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    found = answer.json()
    return found if isinstance(found, list) else [found]


def parts_of(answer: httpx.Response) -> list[dict[str, Any]]:
    listed = [chunk["candidates"][0] for chunk in chunks_of(answer) if "candidates" in chunk]
    return [part for each in listed for part in each["content"]["parts"]]


@pytest.mark.parametrize("model", [MODEL, VERTEX, MODEL.replace("v1beta", "v1")])
def test_a_run_in_all_forms(gateway_server: Start, upstream: ScriptedUpstream, model: str) -> None:
    """One conversation: its steps are scored, it is guided, and tokens and cost are known."""
    server = serve(gateway_server, upstream)
    upstream.default = CALL
    body = body_of()
    for form in FORMS * 2:
        answer = httpx.post(
            f"{server.url}{model}:{form}", json=body, headers={"x-goog-api-key": "k"}
        )
        assert answer.status_code == 200
        assert upstream.last.target == f"{model}:{form}"
        assert upstream.last.header("x-goog-api-key") == "k"
        sent = upstream.last.fields
        for content, own in zip(sent["contents"], body["contents"], strict=True):
            added = content["parts"][len(own["parts"]) :]
            assert content == {**own, "parts": own["parts"] + added}
            assert all(part["text"].startswith(GUIDANCE) for part in added)
        assert sent["systemInstruction"]["parts"][0] == {"text": "You are Gemini CLI."}
        parts = parts_of(answer)
        assert parts[-1]["thoughtSignature"] == "c2ln"
        result = {"name": SHELL, "response": {"error": "FAILED test_a"}}
        body["contents"] += [
            {"role": "model", "parts": parts},
            {"role": "user", "parts": [{"functionResponse": result}]},
        ]
    assert GUIDANCE in upstream.last.body.decode()
    found = states(server)
    assert len(found) == 6
    assert "test_repeat" in found[-1][3]
    assert {step[4] for step in found} == {"gemini-2.5-pro"}
    [run] = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert run["totals"]["input_tokens"] == 72
    assert run["totals"]["cost_usd"] > 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_no_byte_changes(
    gateway_server: Start, upstream: ScriptedUpstream, form: str, mode: str
) -> None:
    """Off and in shadow, the bytes of both directions are those that were sent."""
    server = serve(gateway_server, upstream, steering={**OFF["steering"], "mode": mode})
    upstream.default = CALL
    raw = json.dumps(body_of() | {"big": 2**70, "x": {"y": 1.0}}, indent=1).encode()
    through = httpx.post(f"{server.url}{MODEL}:{form}", content=raw)
    assert upstream.last.body == raw
    straight = httpx.post(f"{upstream.url}{MODEL}:{form}", content=raw)
    first, second = (b"%08d" % n for n in (1, 2))
    assert through.content == straight.content.replace(second, first)
    assert through.headers["content-type"] == straight.headers["content-type"]


@pytest.mark.parametrize("kind", [FaultKind.DROP_MID_BODY, FaultKind.CLEAN_CUT])
@pytest.mark.parametrize("form", FORMS[1:])
def test_a_cut_is_visible(
    gateway_server: Start, upstream: ScriptedUpstream, form: str, kind: FaultKind
) -> None:
    """Events end with an error, an array without its bracket; both without the end of the body."""
    server = serve(gateway_server, upstream, router={"num_retries": 0})
    upstream.default = Fault(kind, reply=CALL, after=2)
    got: list[bytes] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{server.url}{MODEL}:{form}", json=body_of(), timeout=120) as answer,
    ):
        got += answer.iter_bytes()
    text = b"".join(got)
    if "sse" in form:
        told = json.loads(text.strip().rpartition(b"data: ")[2])["error"]
        assert told["code"] == 502
        assert told["status"]
    else:
        assert text.startswith(b"[{")
        assert not text.rstrip().endswith(b"]")
        assert b"error" not in text


def test_an_array_arrives_as_it_is_made(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The first element is there while the upstream is silent."""
    server = serve(gateway_server, upstream)
    upstream.default = Fault(FaultKind.STALL, reply=CALL, after=2)
    url = f"{server.url}{MODEL}:streamGenerateContent"
    with httpx.stream("POST", url, json=body_of(), timeout=120) as answer:
        assert next(answer.iter_bytes()).startswith(b"[{")


@pytest.mark.parametrize("field", ["text", "usage", "alone"])
def test_the_end_of_a_stream(field: str) -> None:
    """A finish reason ends the answer: with its usage at once, without it with the stream."""
    usage = {"promptTokenCount": 3, "thoughtsTokenCount": 2, "candidatesTokenCount": 1}
    parts = {"content": {"parts": [{"text": "done"}]}}
    events: list[Any] = [{"candidates": [parts]}, {"candidates": [{"finishReason": "STOP"}]}]
    if field == "usage":
        events.append({"usageMetadata": usage})
    if field == "text":
        del events[1]
    stream = b"".join(b"data: %b\r\n\r\n" % json.dumps(event).encode() for event in events)
    read = GEMINI.read_stream(stream, orjson.loads)
    assert (read.began, read.ended) == (True, field == "usage")
    assert read.accepted == (field != "text")
    if field == "usage":
        assert read.usage is not None
        assert (read.usage["prompt_tokens"], read.usage["completion_tokens"]) == (3, 3)
    if field != "text":
        assert read.completion is not None
        assert read.completion["choices"][0]["finish_reason"] == "stop"


def test_the_path_stays_as_it_was_written(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Also where the name of the model is escaped in it; a routed one takes its place."""
    server = serve(gateway_server, upstream)
    upstream.default = CALL
    body, login = body_of(), {"authorization": "Bearer ya29.made-up"}
    path = "/v1/publishers/google/models/gemini%2D2.5-pro@001:generateContent"
    parts = parts_of(httpx.post(f"{server.url}{path}", json=body, headers=login))
    assert upstream.last.target == path
    routed = serve(gateway_server, upstream, model_routing={"NORMAL": "gemini-2.5-flash"})
    for text in ("FAILED a", "FAILED b"):
        httpx.post(f"{routed.url}{path}", json=body, headers=login)
        result = {"name": SHELL, "response": {"output": text}}
        body["contents"].append({"role": "model", "parts": parts})
        body["contents"].append({"role": "user", "parts": [{"functionResponse": result}]})
    assert upstream.last.target == path.replace("gemini%2D2.5-pro@001", "gemini-2.5-flash")


SNAPSHOT = (
    f"<state_snapshot>{'The test shall be mended, and the cache is stale. ' * 5}</state_snapshot>"
)


@pytest.mark.parametrize("at", [1, 2], ids=["after a task", "within a task"])
def test_a_compressed_history_is_of_the_same_run(
    gateway_server: Start, upstream: ScriptedUpstream, at: int
) -> None:
    """Gemini CLI puts a summary in front, and words of its own as the model's; a session that it
    resumes has each result twice."""
    server = serve(gateway_server, upstream)
    url = f"{server.url}{MODEL}:generateContent"
    body, opening = body_of(), body_of()["contents"]

    def say(*said: dict[str, Any]) -> str:
        body["contents"] += said
        answer = httpx.post(url, json=body)
        body["contents"].append({"role": "model", "parts": parts_of(answer)})
        return answer.headers["x-gateway-conversation-id"]

    def result(number: str, times: int = 1) -> dict[str, Any]:
        given = {"id": f"call-{number}", "name": SHELL, "response": {"output": f"{number} failed"}}
        return {"role": "user", "parts": [{"functionResponse": given}] * times}

    asked, names = {"role": "user", "parts": [{"text": "And the next one."}]}, set()
    for task in range(at):
        for step in range(3):
            arguments = {"command": f"pytest {task}{step}"}
            call = ToolCall(SHELL, arguments, id=f"call-{task}{step}")
            upstream.default = Reply("Let me look.", tool_calls=(call,))
            before = result(f"{task}{step - 1}") if step else asked
            names.add(say(*([before] if step or task else [])))
        if task == 0:
            upstream.default = Reply("All done.")
            names.add(say(result("02")))
            ended = len(body["contents"])
            body["contents"][2] = result("00", times=2)
    kept = body["contents"][ended:]
    system = "You are a specialized system component responsible for distilling chat history"
    prompt = {"role": "user", "parts": [{"text": "Generate a new <state_snapshot>."}]}
    history = [*body["contents"][:ended], prompt]
    upstream.default = Reply(SNAPSHOT)
    instructed = {"systemInstruction": {"parts": [{"text": system}]}}
    summary = httpx.post(url, json={"contents": history, **instructed})
    assert GUIDANCE not in upstream.last.body.decode()
    names.add(summary.headers["x-gateway-conversation-id"])
    front = [{**opening[0], "parts": [{"text": "Today."}, {"text": SNAPSHOT}]}]
    front.append(
        {"role": "model", "parts": [{"text": "Got it. Thanks for the additional context!"}]}
    )
    body["contents"] = [*front, *kept]
    names.add(say(result("12") if kept else asked))
    assert len(names) == 1
    steps = [
        run["totals"]["scored_steps"] for run in httpx.get(f"{server.url}/api/runs").json()["runs"]
    ]
    assert sorted(steps) == ([0, 3] if at == 1 else [3, 3])


def test_a_blocked_prompt_is_an_answer() -> None:
    """It has no candidates, and ends the run as filtered; an error is no answer."""
    view = GEMINI.read_answer({"promptFeedback": {"blockReason": "SAFETY"}})
    assert view is not None
    assert view["choices"][0]["finish_reason"] == "content_filter"
    assert GEMINI.read_answer({"error": {"code": 500}}) is None


def test_a_deployment_of_googles(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """It is asked natively, at the Gemini API's path, with its key in Google's header."""
    made = {
        "model": "gemini/gemini-2.5-flash",
        "api_base": f"{upstream.url}/v1beta",
        "api_key": "own",
    }
    models = [{"model_name": "gemini-2.5-pro", "litellm_params": made}]
    server = serve(gateway_server, upstream, model_list=models)
    upstream.default = CALL
    answer = httpx.post(
        f"{server.url}{VERTEX}:{FORMS[1]}",
        json=body_of(),
        headers={"authorization": "Bearer ya29.theirs"},
    )
    assert answer.status_code == 200
    path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert upstream.last.target == path
    assert upstream.last.header("x-goog-api-key") == "own"
    assert upstream.last.header("authorization") is None


@pytest.mark.parametrize(
    "named",
    [
        {"cachedContent": "cachedContents/c"},
        {"contents": [{"parts": [{"fileData": {"fileUri": "https://x/v1beta/files/f"}}]}]},
    ],
)
def test_what_the_operator_stores_is_no_tenants(
    gateway_server: Start, upstream: ScriptedUpstream, named: dict[str, Any]
) -> None:
    """A tenant's key has inference: a request that names the account's caches or files is 403."""
    made = {"model": "gemini/g", "api_base": upstream.url, "api_key": "own"}
    server = serve(
        gateway_server,
        upstream,
        model_list=[{"model_name": "gemini-2.5-pro", "litellm_params": made}],
        auth={"gateway_keys": {"t": "gw-own-key"}},
    )
    url, headers = f"{server.url}{MODEL}:generateContent", {"x-goog-api-key": "gw-own-key"}
    assert httpx.post(url, json=body_of(), headers=headers).status_code == 200
    refused = httpx.post(url, json=body_of() | named, headers=headers)
    assert (refused.status_code, len(upstream.requests)) == (403, 1)


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_another_provider(
    gateway_server: Start, upstream: ScriptedUpstream, provider: str, form: str
) -> None:
    """LiteLLM translates for a deployment that speaks another API."""
    made = {"model": f"{provider}/m", "api_base": upstream.base_url, "api_key": "own"}
    made |= {"api_base": upstream.url} if provider == "anthropic" else {}
    models = [{"model_name": "gemini-2.5-pro", "litellm_params": made}]
    server = serve(gateway_server, upstream, model_list=models)
    upstream.default = CALL
    answer = httpx.post(f"{server.url}{MODEL}:{form}", json=body_of(), timeout=120)
    assert answer.status_code == 200, answer.text
    assert upstream.last.path in ("/v1/chat/completions", "/v1/messages")
    assert GUIDANCE in upstream.last.body.decode()
    [call] = [part["functionCall"] for part in parts_of(answer) if "functionCall" in part]
    assert (call["name"], call["args"]) == (SHELL, {"command": "pytest"})


@given(st.lists(st.booleans(), max_size=4), st.booleans())
def test_contents_as_chat_messages(more: list[bool], ids: bool) -> None:
    """Each call has an id of its own, its result comes right behind it, thoughts are left out."""
    contents: list[dict[str, Any]] = body_of()["contents"]
    for turn, says in enumerate(more):
        own = [{"id": f"i{turn}{n}"} if ids else {} for n in (0, 1)]
        calls = [{"functionCall": {**each, "name": SHELL, "args": {"n": 1}}} for each in own]
        results = [
            {"functionResponse": {**each, "name": SHELL, "response": {"output": str(n)}}}
            for n, each in enumerate(own)
        ]
        results = results[::-1] if ids else results
        parts = [{"text": "go on"}, *results] if says else results
        contents.append({"role": "model", "parts": [{"text": "hm", "thought": True}, *calls]})
        contents.append({"role": "user", "parts": parts})
    made = chat_messages(contents, {"parts": [{"text": "a"}, {"text": "b"}]})
    assert made[0] == {"role": "system", "content": "a\n\nb"}
    asked = [call["id"] for m in made for call in m.get("tool_calls", ())]
    assert len(set(asked)) == len(asked) == 2 * len(more)
    shown = {m["tool_call_id"]: m["content"] for m in made if m["role"] == "tool"}
    assert [shown[each] for each in asked] == ["0", "1"] * len(more)
    for at, message in enumerate(made):
        if message.get("tool_calls"):
            assert message["content"] is None
            assert [m["role"] for m in made[at + 1 : at + 3]] == ["tool", "tool"]


@pytest.mark.parametrize("form", FORMS[:2])
def test_google_through_litellm(
    gateway_server: Start, upstream: ScriptedUpstream, form: str
) -> None:
    """A deployment of that lane gets the contents as they are, and answers in Google's form."""
    made = {"model": "gemini/g", "api_base": f"{upstream.url}/v1beta", "api_key": "own"}
    listed = {"model_name": "gemini-2.5-pro", "litellm_params": made, "lane": "litellm"}
    server = serve(gateway_server, upstream, model_list=[listed])
    upstream.default = CALL
    answer = httpx.post(f"{server.url}{MODEL}:{form}", json=body_of(), timeout=120)
    assert answer.status_code == 200, answer.text
    assert upstream.last.path.startswith("/v1beta/models/g:")
    assert upstream.last.fields["contents"] == body_of()["contents"]
    assert GUIDANCE in upstream.last.body.decode()
    assert parts_of(answer)[-1]["functionCall"]["args"] == {"command": "pytest"}


def test_errors_are_in_googles_form(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Of keys and of bodies; a gateway key in Google's header is accepted and not sent on."""
    server = serve(gateway_server, upstream, auth={"gateway_keys": {"t": "gw-own-key"}})
    url = f"{server.url}{MODEL}:generateContent"
    refused = httpx.post(url, json=body_of(), headers={"x-goog-api-key": "other"})
    assert refused.json()["error"]["status"] == "UNAUTHENTICATED"
    known = {"x-goog-api-key": "gw-own-key"}
    assert httpx.post(url, json={"contents": 1}, headers=known).json()["error"]["code"] == 400
    assert httpx.post(url, json=body_of(), headers=known).status_code == 200
    assert upstream.last.header("x-goog-api-key") is None


@pytest.mark.parametrize("form", FORMS)
def test_an_own_answer(form: str) -> None:
    """A spent budget is told as an answer, in the form that was asked for."""
    verb, _, query = form.partition("?")
    asked = GEMINI.addressed(f"{MODEL}:{verb}")
    assert asked is not None
    asked = replace(asked, query=query.encode())
    request = GEMINI.parse(b'{"contents": []}', orjson.loads, None, asked)
    content = GEMINI.own_answer(request, "Stopped.", "7", 0)
    if "stream" in form:
        assert GEMINI.read_stream(content, orjson.loads).completion
        assert content.startswith(b"data: " if "sse" in form else b"[")
    else:
        assert GEMINI.read_answer(json.loads(content))


def test_questions_beside_a_run() -> None:
    """Gemini CLI asks who speaks next, with the history: that is no step of the run."""
    body = body_of()
    del body["tools"]
    schema = {"type": "object", "properties": {"reasoning": {}, "next_speaker": {}}}
    body["generationConfig"] |= {"responseJsonSchema": schema}
    assert GEMINI.is_side_request(parsed(body))
    schema["properties"] = {"reasoning": {}}
    assert not GEMINI.is_side_request(parsed(body))


ADDRESSED = GEMINI.addressed(f"{MODEL}:generateContent")
texts = st.text(max_size=8)
scalars = st.none() | st.booleans() | st.integers() | texts
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=6
)
names = st.sampled_from(
    [
        *("text", "functionCall", "function_call", "functionResponse", "inlineData", "thought"),
        *("fileData", "executableCode", "codeExecutionResult", "thoughtSignature", "new"),
    ]
)
odd_parts = st.dictionaries(
    names,
    values
    | st.fixed_dictionaries({}, optional={"name": values, "args": values, "id": values})
    | st.fixed_dictionaries({}, optional={"response": values, "parts": values, "id": values}),
    max_size=3,
)
odd_contents = st.fixed_dictionaries(
    {},
    optional={"role": st.sampled_from(["user", "model", "function", "x"]) | values}
    | {"parts": st.lists(odd_parts | values, max_size=3) | odd_parts | values},
)
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
notes = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3).map(tuple)


def parsed(body: dict[str, Any], layout: Any = None) -> Any:
    raw = json.dumps(body, **(layout or {})).encode("utf-8", "surrogatepass")
    return GEMINI.parse(raw, orjson.loads, None, ADDRESSED)


@given(st.lists(odd_contents | values, max_size=5) | odd_contents, values, layouts)
def test_any_contents_are_read(contents: Any, config: Any, layout: Any) -> None:
    """Nothing raises, whatever the client sends."""
    request = parsed({"contents": contents, "generationConfig": config}, layout)
    extract(request.transcript)
    extend(start_state("t"), request.transcript)
    chat_messages(contents if isinstance(contents, list) else [contents], config)
    GEMINI.is_side_request(request)
    GEMINI.read_answer({"candidates": [{"content": each} for each in contents], "x": config})
    GEMINI.read_stream(json.dumps([{"candidates": contents}]).encode()[:-1], orjson.loads)


known_parts = st.lists(st.fixed_dictionaries({"text": texts}), max_size=2)
instructions = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("user"),
        "parts": known_parts | st.fixed_dictionaries({"text": texts}),
    },
)


@given(
    st.sampled_from(["systemInstruction", "system_instruction"]),
    st.none() | instructions,
    st.lists(instructions, min_size=1, max_size=3),
    notes,
    st.booleans(),
    layouts,
)
def test_guidance_adds_parts_and_nothing_else(
    key: str, system: Any, contents: Any, told: tuple[str, ...], late: bool, layout: Any
) -> None:
    """The client's parts stay as they are, ours follow; all else is untouched."""
    body = {"x": 1.0, key: system, "contents": contents, "y": {"z": None}}
    edits: list[Edit] = [SystemAppend(index=0, texts=told, breakpoint={"type": "ephemeral"})]
    if late:
        edits.append(AppendToResult(index=len(contents), texts=("late",)))
    request = parsed(body, layout)
    after = json.loads(request.render(GEMINI.splices(request, edits)))

    def grown(content: Any, added: list[str]) -> Any:
        own = content.get("parts", [])
        own = own if isinstance(own, list) else [own]
        return {**content, "parts": own + [{"text": text} for text in added]}

    expected = {**body, key: grown(system or {}, list(told))}
    if late:
        expected["contents"] = [*contents[:-1], grown(contents[-1], ["late"])]
    assert after == expected


@pytest.mark.parametrize("form", FORMS)
def test_every_fault(gateway_server: Start, upstream: ScriptedUpstream, form: str) -> None:
    """Errors before the first byte are told in Google's form; what can be relayed is relayed."""
    server = serve(gateway_server, upstream, **OFF, router={"num_retries": 2, "backoff_s": 0})
    with httpx.Client(timeout=120) as client:
        for kind, (status, _) in BEFORE.items():
            if kind in LIMITS or kind is FaultKind.HTML_ERROR:
                continue
            upstream.default = a_fault(kind)
            heard = hear(client, f"{server.url}{MODEL}:{form}", json=body_of())
            assert (kind, heard.status) == (kind, status)
            assert heard.json["error"]["message"]
            assert set(heard.json["error"]) == {"code", "message", "status"}
        for kind in RELAYED_STREAMS if "stream" in form else RELAYED:
            upstream.default = a_fault(kind)
            straight = hear(client, f"{upstream.url}{MODEL}:{form}", json=body_of())
            first = b"%08d" % upstream.last.sequence
            through = hear(client, f"{server.url}{MODEL}:{form}", json=body_of())
            second = b"%08d" % upstream.last.sequence  # an error may be repeated
            assert through.body.replace(second, b"N") == straight.body.replace(first, b"N")
            assert (kind, through.status) == (kind, straight.status)
            assert through.headers["content-type"] == straight.headers["content-type"]


def a_model(steps: int) -> Callable[[ReceivedRequest], Reply]:
    """A model that runs a failing command `steps` times, never with the same words: Gemini CLI
    stops a loop itself."""
    asked = 0

    def reply(request: ReceivedRequest) -> Reply:
        nonlocal asked
        if not request.fields.get("tools") or asked >= steps:
            return Reply("All done.")
        asked += 1
        command = f'echo "FAILED tests/test_a.py::test_x"; exit {asked}'
        call = ToolCall(SHELL, {"command": command, "description": "run"})
        return Reply(THOUGHT, reasoning="Hm.", tool_calls=(call,), signature="c2ln")

    return reply


def gemini_cli(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Gemini CLI with an API key, one task without a terminal."""
    own = folder / ".gemini"
    own.mkdir()
    chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (own / "settings.json").write_text(json.dumps(chosen))
    env = {"HOME": str(folder), "GEMINI_API_KEY": "AIza-own", "GOOGLE_GEMINI_BASE_URL": url}
    env["GEMINI_CLI_TRUST_WORKSPACE"] = "true"
    flags = ["--approval-mode", "yolo", "-m", "gemini-2.5-pro"]
    command = [str(found("gemini")), "-p", "repair the test", *flags]
    return run(command, env, folder / "work")


@pytest.mark.slow
@needs("gemini")
def test_gemini_cli_is_steered(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Its tool loop completes as one run that is scored, guided, and whose cost is known."""
    upstream.default = a_model(6)
    server = serve(gateway_server, upstream)
    ended = gemini_cli(server.url, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "All done" in ended.stdout
    rows = states(server)
    assert [row[0] for row in rows] == list(range(7))
    assert any("test_repeat" in row[3] for row in rows)
    [about] = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert about["totals"]["cost_usd"] > 0
    assert all(GUIDANCE in r.body.decode() for r in upstream.requests if r.fields.get("tools"))


@pytest.mark.slow
@needs("gemini")
@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_gemini_cli_is_left_alone(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, mode: str
) -> None:
    """A tap on either side of the gateway hears the same bodies and answers."""
    upstream.default = a_model(3)
    with Tap(upstream.port) as far:
        own = {"api_base": upstream.base_url, "gemini_api_base": f"http://127.0.0.1:{far.port}"}
        server = gateway_server(
            {"default_upstream": own, "steering": {**STEERING["steering"], "mode": mode}}
        )
        with Tap(server.port) as near:
            ended = gemini_cli(f"http://127.0.0.1:{near.port}", tmp_path)
            told, heard = near.exchanges(), far.exchanges()
    assert ended.returncode == 0, ended.stderr
    assert len(told) >= 4
    assert [(e.target, e.request, e.answer) for e in told] == [
        (e.target, e.request, e.answer) for e in heard
    ]
