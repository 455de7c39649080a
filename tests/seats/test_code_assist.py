"""Gemini CLI with a Google account: Gemini's requests and answers in Code Assist's envelopes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.looping import GUIDANCE, OFF, STEERING, states
from steering_gateway_testing.patience import runs_at
from steering_gateway_testing.values import Fault, FaultKind
from tests.docs.test_examples import blocks

Start = Callable[..., AppServer]
SHELL = "run_shell_command"
SESSION = "5cbc75c0-10a2-48bc-87e6-e43e2e021d6c"
LOGIN = {
    "authorization": "Bearer ya29.made-up",
    "user-agent": "GeminiCLI-tui/0.61.0/gemini-2.5-pro (linux; x64; terminal)",
}
STREAM = "/v1internal:streamGenerateContent?alt=sse"
FORMS = (STREAM, "/v1internal:generateContent", "/v1internal%3AstreamGenerateContent?alt=sse")
CALL = Reply(
    "Maybe it is stale, I am not sure.",
    reasoning="It may be the cache.",
    tool_calls=(ToolCall(SHELL, {"command": "pytest"}),),
    signature="c2ln",
)


def envelope(*more: dict[str, Any], turn: str = SESSION) -> dict[str, Any]:
    """A request as Gemini CLI sends it, with this history behind the task."""
    task = {"role": "user", "parts": [{"text": "Mend the test."}]}
    return {
        "model": "gemini-3-flash",
        "project": "made-up-project",
        "user_prompt_id": turn,
        "request": {
            "contents": [task, *more],
            "systemInstruction": {"role": "user", "parts": [{"text": "You are Gemini CLI."}]},
            "tools": [{"functionDeclarations": [{"name": SHELL, "parametersJsonSchema": {}}]}],
            "generationConfig": {"temperature": 1, "thinkingConfig": {"includeThoughts": True}},
            "session_id": SESSION,
        },
        "enabled_credit_types": ["GOOGLE_ONE_AI"],
    }


def turn_of(count: int) -> list[dict[str, Any]]:
    """So many steps that fail."""
    call = {"functionCall": {"name": SHELL, "args": {"command": "pytest"}}, "thoughtSignature": "c"}
    result = {"functionResponse": {"name": SHELL, "response": {"error": "FAILED test_a"}}}
    step = [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    return step * count


def serve(start: Start, upstream: ScriptedUpstream, **settings: Any) -> AppServer:
    """A gateway in front of Code Assist: nobody listens at any other address."""
    nobody = "http://127.0.0.1:9"
    bases = {"api_base": f"{nobody}/v1", "gemini_api_base": nobody, "vertex_api_base": nobody}
    own = {**bases, "code_assist_api_base": upstream.url}
    return start({**STEERING, "default_upstream": own, **settings})


def chunks_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The objects of an answer, streamed or not."""
    lines = answer.text.splitlines()
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return found or [answer.json()]


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_no_byte_changes(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, mode: str
) -> None:
    """Line, login, body and answer are those that were sent."""
    server = serve(gateway_server, upstream, steering={**OFF["steering"], "mode": mode})
    upstream.default = CALL
    raw = json.dumps(envelope(*turn_of(2)) | {"big": 2**70, "x": {"y": 1.0}}, indent=1).encode()
    through = httpx.post(f"{server.url}{path}", content=raw, headers=LOGIN)
    seen = upstream.last
    assert (seen.body, seen.target) == (raw, path)
    assert {name: seen.header(name) for name in LOGIN} == LOGIN
    straight = httpx.post(f"{upstream.url}{path}", content=raw)
    assert through.content == straight.content.replace(b"%08d" % 2, b"%08d" % 1)


def test_a_run_is_read_and_guided(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """One conversation by its session: steps, model, tokens and cost are known; the guidance is in
    the inner object, and what is around it stays."""
    server = serve(gateway_server, upstream)
    upstream.default = CALL
    for count in range(6):
        body = envelope(*turn_of(count))
        answer = httpx.post(server.url + FORMS[count % 3], json=body, headers=LOGIN)
        assert answer.status_code == 200
        assert answer.headers["x-gateway-identity"] in ("body:session_id", "new")
        sent = upstream.last.fields
        assert {**sent, "request": 0} == {**body, "request": 0}
        parts = sent["request"]["systemInstruction"]["parts"]
        assert parts[0] == {"text": "You are Gemini CLI."}
        assert all(part["text"].startswith(GUIDANCE) for part in parts[1:])
        assert {**sent["request"], "contents": 0, "systemInstruction": 0} == {
            **body["request"],
            "contents": 0,
            "systemInstruction": 0,
        }
    assert GUIDANCE in upstream.last.body.decode()
    found = states(server)
    assert len(found) == 6
    assert "test_repeat" in found[-1][3]
    (run,) = runs_at(server.url)
    assert run["model_requested"] == "gemini-3-flash"
    assert run["totals"]["input_tokens"] == 72
    assert run["totals"]["cost_usd"] > 0


def test_another_model_is_asked_in_the_envelope(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Routing changes the model there, and the path stays."""
    routing = {"NORMAL": "gemini-3.1-pro", "SLOW": "gemini-3.1-pro"}
    server = serve(gateway_server, upstream, model_routing=routing)
    upstream.default = CALL
    for count in range(3):
        httpx.post(server.url + STREAM, json=envelope(*turn_of(count)), headers=LOGIN)
    assert upstream.last.target == STREAM
    assert upstream.last.fields["model"] == "gemini-3.1-pro"
    assert upstream.last.fields["project"] == "made-up-project"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1internal:loadCodeAssist"),
        ("POST", "/v1internal:onboardUser"),
        ("POST", "/v1internal:countTokens"),
        ("POST", "/v1internal:a%6Eything"),
        ("GET", "/v1internal:getCodeAssistGlobalUserSetting"),
        ("GET", "/v1internal/operations/abc?x=1"),
    ],
)
def test_every_other_method_passes(
    gateway_server: Start, upstream: ScriptedUpstream, method: str, path: str
) -> None:
    """Unchanged, to the same host; no run is made of it."""
    server = serve(gateway_server, upstream)
    raw = b'{ "request": {"model": "models/m", "contents": []} }' if method == "POST" else b""
    kind = {"content-type": "application/json"}
    httpx.request(method, server.url + path, content=raw, headers={**LOGIN, **kind})
    seen = upstream.last
    assert (seen.method, seen.target, seen.body) == (method, path, raw)
    assert seen.header("authorization") == LOGIN["authorization"]
    assert httpx.get(f"{server.url}/api/runs").json()["runs"] == []


OWN_KEY = "AIza-of-the-operator"


def by_key(upstream: ScriptedUpstream, name: str = "by-key", **more: Any) -> dict[str, Any]:
    """A deployment of the Gemini API."""
    params = {"model": "gemini/gemini-3.1-pro", "api_base": upstream.url, "api_key": OWN_KEY}
    return {"model_name": name, "litellm_params": {**params, **more}}


@pytest.fixture
def limited() -> Iterator[ScriptedUpstream]:
    """Code Assist for an account that is at its limit, as it says in its error alone."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "33740.910s"}]
    error = {"code": 429, "message": "Quota.", "status": "RESOURCE_EXHAUSTED", "details": details}
    refused = Reply(status=429, raw=json.dumps({"error": error}).encode())
    with ScriptedUpstream(default=refused) as host:
        yield host


@pytest.mark.parametrize("form", [STREAM, FORMS[1]])
@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_key_answers_in_the_envelope_while_the_login_is_at_its_limit(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    limited: ScriptedUpstream,
    form: str,
    mode: str,
) -> None:
    """It is asked for what is in the envelope, and its answer is put into one, byte for byte.
    Neither credential goes to the other's host, and the login is not asked again before the end."""
    upstream.default = CALL
    server = serve(
        gateway_server,
        limited,
        steering={**STEERING["steering"], "mode": mode},
        model_list=[by_key(upstream)],
        router={"fallbacks": [{"*": ["by-key"]}]},
    )
    packed = {**LOGIN, "accept-encoding": "gzip"}
    for count in range(2):
        answer = httpx.post(server.url + form, json=envelope(*turn_of(count)), headers=packed)
        assert answer.status_code == 200
        assert answer.headers["x-gateway-dropped-params"] == "session_id"
        sent = upstream.last
        path = form.replace("/v1internal", "/v1beta/models/gemini-3.1-pro")
        assert (sent.target, sent.header("x-goog-api-key")) == (path, OWN_KEY)
        inner = envelope(*turn_of(count))["request"]
        assert sent.fields.keys() == inner.keys() - {"session_id"}
        assert sent.fields["contents"] == inner["contents"]
        straight = httpx.post(f"{upstream.url}{path}", json=sent.fields)
        marks = (b"%08d" % (upstream.last.sequence), b"%08d" % sent.sequence)
        expected = straight.content.replace(*marks)
        for chunk in chunks_of(straight):
            raw = json.dumps(chunk, separators=(",", ":")).encode().replace(*marks)
            expected = expected.replace(raw, b'{"response": %b}' % raw)
        assert answer.content == expected
        assert b'"response": ' in expected
        assert all("ya29" not in str(each.headers) for each in upstream.requests)
    assert len(limited.requests) == 1
    assert OWN_KEY not in str(limited.last.headers)
    (run,) = runs_at(server.url)
    assert run["totals"]["cost_usd"] > 0
    (noted,) = server.app.runtime.services.dispatcher.dry.shown(time.time())
    assert noted.until - noted.since == pytest.approx(33740.91, abs=120)
    assert (noted.other, noted.calls) == ("by-key", 2)
    assert noted.usd == pytest.approx(run["totals"]["cost_usd"])


def test_the_recipe_of_the_page_is_followed(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    limited: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its config an account at its limit goes on with the key, and is back afterwards."""
    monkeypatch.setenv("GEMINI_API_KEY", OWN_KEY)
    page = Path(__file__).parents[2] / "docs/clients/gemini-cli.md"
    [config] = [yaml.safe_load(block) for block in blocks(page, "yaml")]
    config["model_list"][0]["litellm_params"]["api_base"] = upstream.url
    server = serve(gateway_server, limited, **config)
    upstream.default = Reply("by key")

    def ask() -> str:
        answer = httpx.post(server.url + STREAM, json=envelope(), headers=LOGIN, timeout=120)
        assert answer.status_code == 200
        parts = [part for chunk in chunks_of(answer) for part in _parts_in(chunk)]
        return "".join(part["text"] for part in parts)

    assert ask() == "by key"
    (noted,) = server.app.runtime.services.dispatcher.dry.shown(time.time())
    noted.until = 0.0
    limited.default = Reply("by login")
    assert ask() == "by login"
    assert len(upstream.requests) == 1
    shown = httpx.get(f"{server.url}/dashboard", headers=CONTROL, timeout=120).text
    assert "was at its limit" in shown
    assert "by-key answered 1 call, " in shown


def _parts_in(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = chunk["response"]["candidates"][0]["content"]["parts"]
    return parts


def test_an_error_of_the_key_has_no_envelope(
    gateway_server: Start, upstream: ScriptedUpstream, limited: ScriptedUpstream
) -> None:
    """Nor has one in the middle of a stream; Code Assist's own have none."""
    again = {"num_retries": 0, "fallbacks": [{"*": ["by-key"]}]}
    server = serve(gateway_server, limited, model_list=[by_key(upstream)], router=again, **OFF)
    upstream.script(Fault(FaultKind.BAD_REQUEST))
    answer = httpx.post(server.url + STREAM, json=envelope(), headers=LOGIN)
    assert (answer.status_code, answer.json().keys()) == (400, {"error"})
    upstream.script(Fault(FaultKind.ERROR_EVENT, reply=CALL, after=1))
    answer = httpx.post(server.url + STREAM, json=envelope(), headers=LOGIN)
    assert [[*chunk] for chunk in chunks_of(answer)] == [["response"], ["error"]]


@pytest.mark.parametrize(
    ("path", "fallbacks", "given"),
    [
        (STREAM, [], {}),
        ("/v1internal:streamGenerateContent", [{"*": ["by-key"]}], {}),
        (STREAM, [{"*": ["by-key"]}], {"model": "openai/gpt-4o"}),
        (STREAM, [{"*": ["gemini-3.1-pro"]}], {}),
    ],
    ids=["no fallback", "an array", "another API", "another model of the login's"],
)
def test_no_other_host_is_asked(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    limited: ScriptedUpstream,
    path: str,
    fallbacks: list[Any],
    given: dict[str, str],
) -> None:
    """A deployment of the model's own name is not, nor one that does not speak Gemini's API, nor
    any for an answer that cannot be put into envelopes."""
    listed = [by_key(upstream, "gemini-3-flash"), by_key(upstream, **given)]
    again = {"num_retries": 0, "fallbacks": fallbacks}
    server = serve(gateway_server, limited, model_list=listed, router=again)
    answer = httpx.post(server.url + path, json=envelope(), headers=LOGIN)
    assert answer.status_code == 429
    assert limited.last.header("authorization") == LOGIN["authorization"]
    assert not upstream.requests


def test_a_key_of_the_gateways_spends_the_other_for_inference_alone(
    gateway_server: Start, upstream: ScriptedUpstream, limited: ScriptedUpstream
) -> None:
    """Stored things in the envelope are refused, and so is a model that is not the key's."""
    rights = {"a": {"routes": ["/v1internal:*"], "models": ["gemini-3-flash"]}}
    server = serve(
        gateway_server,
        limited,
        model_list=[by_key(upstream)],
        router={"num_retries": 0, "fallbacks": [{"*": ["by-key"]}]},
        auth={"gateway_keys": {"a": "gw-tenant-a-1111"}, "rights": rights},
    )
    headers = {**LOGIN, "x-gateway-key": "gw-tenant-a-1111"}
    stored = envelope()
    stored["request"]["cachedContent"] = "cachedContents/x"
    other = envelope() | {"model": "gemini-3.1-pro"}
    for body in (stored, other):
        answer = httpx.post(server.url + STREAM, json=body, headers=headers)
        assert answer.status_code == 403
    assert not upstream.requests
    assert httpx.post(server.url + STREAM, json=envelope(), headers=headers).status_code == 200
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b'{"model": "m"}', "request"),
        (b'{"request": {"contents": []}}', "model"),
        (b'{"model": "m", "request": {"contents": []}, "Model": "n"}', "Model"),
        (b'{"model": 3, "request": {"contents": []}}', "model"),
        (b'{"model": "m", "request": {}}', "contents"),
    ],
)
def test_a_wrong_envelope_is_refused_by_name(
    gateway_server: Start, upstream: ScriptedUpstream, raw: bytes, named: str
) -> None:
    """In Google's shape, and nothing is sent."""
    server = serve(gateway_server, upstream)
    answer = httpx.post(server.url + STREAM, content=raw, headers=LOGIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert named in answer.json()["error"]["message"]
    assert not upstream.requests


def test_a_cut_stream_ends_with_an_error(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The client sees that the answer is not complete."""
    server = serve(gateway_server, upstream, router={"num_retries": 0})
    upstream.default = Fault(FaultKind.CLEAN_CUT, reply=CALL, after=2)
    got: list[bytes] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", server.url + STREAM, json=envelope(), timeout=120) as answer,
    ):
        got += answer.iter_bytes()
    told = json.loads(b"".join(got).strip().rpartition(b"data: ")[2])
    assert told["error"]["code"] == 502


def test_a_stopped_run_gets_an_answer_in_the_envelope(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """The gateway's own answer has the form that the client reads."""
    budget = {"name": "b", "scope": "run", "limits": {"calls": 1}, "stop_with": "answer"}
    server = serve(gateway_server, upstream, budgets=[budget])
    upstream.default = CALL
    httpx.post(server.url + STREAM, json=envelope(), headers=LOGIN)
    for path in FORMS[:2]:
        answer = httpx.post(server.url + path, json=envelope(*turn_of(1)), headers=LOGIN)
        candidate = chunks_of(answer)[-1]["response"]["candidates"][0]
        assert "budget" in candidate["content"]["parts"][0]["text"]
        assert candidate["finishReason"] == "STOP"


def test_a_sub_agent_is_told_apart_by_its_turns(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Its requests have the session of its parent, and an id of its own with the number of the
    turn; another prompt of the main agent is none."""

    def reply(request: ReceivedRequest) -> Reply:
        started = ToolCall("invoke_agent", {"agent_name": "generalist", "prompt": "Look well."})
        return CALL if "#" in request.fields["user_prompt_id"] else Reply("", tool_calls=(started,))

    server = serve(gateway_server, upstream)
    upstream.default = reply
    names = []
    for turn in (SESSION, "fe75-abc#0", "fe75-abc#1", f"{SESSION}########2"):
        body = envelope(*(turn_of(1) if turn.endswith(("1", "2")) else ()), turn=turn)
        if "-abc#" in turn:
            body["request"]["contents"][0]["parts"][0]["text"] = "Your task: <objective>Look well.<"
        answer = httpx.post(server.url + STREAM, json=body, headers=LOGIN)
        names.append(answer.headers["x-gateway-conversation-id"])
    main, first, second, later = names
    assert first == second
    assert main == later != first
    index = server.app.runtime.services.index
    helper = index.get(first)
    assert helper is not None
    assert helper.sub_agent.id == first
    assert helper.ancestors[:1] == (main,)
    parent = index.get(main)
    assert parent is not None
    assert not parent.sub_agent.id


@pytest.mark.parametrize("login", ["Google account", "key"])
def test_a_sub_agent_is_capped_and_its_parent_goes_on(
    gateway_server: Start, upstream: ScriptedUpstream, login: str
) -> None:
    """With a key nothing but its prompt tells it apart: the one of a call that its parent made."""
    prompt = "Count the files of this folder, and say how many there are."
    started = ToolCall("invoke_agent", {"agent_name": "generalist", "prompt": prompt})

    def reply(request: ReceivedRequest) -> Reply:
        if b"You help another" in request.body:
            return CALL
        return Reply("", tool_calls=(started,))

    upstream.default = reply
    cap = {"name": "helpers", "match": {"sub_agent": True}, "limits": {"calls": 2}}
    server = serve(gateway_server, upstream, budgets=[cap])
    own = {"api_base": "http://127.0.0.1:9/v1", "gemini_api_base": upstream.url}
    if login == "key":
        server = gateway_server({**STEERING, "default_upstream": own, "budgets": [cap]})

    def ask(body: dict[str, Any]) -> httpx.Response:
        if login == "Google account":
            return httpx.post(server.url + STREAM, json=body, headers=LOGIN)
        inner = {key: value for key, value in body["request"].items() if key != "session_id"}
        url = f"{server.url}/v1beta/models/{body['model']}:streamGenerateContent?alt=sse"
        return httpx.post(url, json=inner, headers={"x-goog-api-key": "AIza-made-up"})

    main = ask(envelope()).headers["x-gateway-conversation-id"]
    ends = []
    for count in range(4):
        body = envelope(*turn_of(count), turn=f"fe75-abc#{count}")
        body["request"]["contents"][0]["parts"][0]["text"] = prompt
        body["request"]["systemInstruction"]["parts"][0]["text"] = "You help another agent."
        answer = ask(body)
        ends.append(answer.headers.get("x-gateway-stopped"))
    assert ends == [None, None, "budget_exceeded", "budget_exceeded"]
    assert "2 of the 2-call budget is used" in answer.text
    found = server.app.runtime.services.index.get(answer.headers["x-gateway-conversation-id"])
    assert found is not None
    assert found.sub_agent.kind == "generalist"
    assert found.ancestors[:1] == (main,)
    for count in range(1, 4):
        assert "x-gateway-stopped" not in ask(envelope(*turn_of(count))).headers
