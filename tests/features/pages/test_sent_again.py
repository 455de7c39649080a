"""A recorded call sent once more: by whom, with what, to where, and what is kept of it."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx
import pytest

from gateway.core.guidance_text import FRAME_OPEN
from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import CONTROL, LoopingAgent, client_of, operator_of
from steering_gateway_testing.patience import until
from tests.api.conftest import Start, with_budgets, with_keys

PRICED = "gpt-4o"
"""A model that the list of prices has."""


def a_guided_run(server: AppServer, upstream: ScriptedUpstream, steps: int = 6) -> str:
    """The id of a run that repeats itself until it is given a text."""
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find the file")
        for _ in range(steps):
            agent.step()
    return agent.run_id


def tries_of(client: httpx.Client, run_id: str, step: int, **choice: Any) -> dict[str, Any]:
    """The price and the tries, as soon as the call itself is kept."""
    path = f"/api/runs/{run_id}/steps/{step}/tries"
    given = {"model": PRICED, **choice}

    def read() -> dict[str, Any]:
        answer = client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    until(lambda: "was made before" not in read()["price"]["problem"])
    return read()


def test_a_call_is_sent_again_with_another_model_and_without_its_guidance(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """It differs in nothing else, is no step of the run, is listed beside the answer of then with
    what it cost, and is an act of who sent it."""
    server = start(storage={"raw_mb": 4})
    run_id = a_guided_run(server, upstream)
    then = upstream.requests[-1].json
    assert FRAME_OPEN in json.dumps(then)
    upstream.default = Reply("I would look elsewhere.", tool_calls=(ToolCall("find", '{"a": 1}'),))
    before = len(upstream.requests)
    with operator_of(server) as operator:
        last = operator.get(f"/api/runs/{run_id}").json()["steps"][-1]["step_index"]
        state = operator.get(f"/api/runs/{run_id}").json()
        offered = tries_of(operator, run_id, last, model="gpt-4o-mini", guidance="none")
        assert len(upstream.requests) == before, "a price is no call"
        low, high = offered["price"]["usd"]
        assert 0 < low < high
        for model, guidance in (("gpt-4o-mini", "none"), (PRICED, "sent")):
            made = operator.post(
                f"/api/runs/{run_id}/steps/{last}/tries",
                params={"model": model, "guidance": guidance},
                headers={"x-gateway-author": "Ada"},
            )
            assert made.status_code == 200, made.text
        sent = [request.json for request in list(upstream.requests)[before:]]
        assert operator.get(f"/api/runs/{run_id}").json() == state, "the run sees nothing of it"
        listed = tries_of(operator, run_id, last)["tries"]
        acts = operator.get("/api/audit", params={"subject": run_id}).json()["acts"]
        page = html.unescape(operator.get(f"/dashboard/runs/{run_id}/steps/{last}/raw").text)
    assert sent[1] == then
    assert FRAME_OPEN not in json.dumps(sent[0])
    assert sent[0]["model"] == "gpt-4o-mini"
    assert {k: v for k, v in sent[0].items() if k not in ("model", "messages")} == {
        k: v for k, v in then.items() if k not in ("model", "messages")
    }
    said = [each["content"] for each in sent[0]["messages"] if each["role"] == "tool"]
    assert said == ["Error: no such file"] * len(said)
    assert [each["changed"]["model"] for each in listed] == [PRICED, "gpt-4o-mini"]
    assert all(each["author"] == "Ada" and each["changed"]["cost_usd"] > 0 for each in listed)
    assert "I would look elsewhere." in listed[0]["answer"]
    assert 'find {"a": 1}' in listed[0]["answer"]
    assert [act["act"] for act in acts] == ["try", "try"]
    assert page.count("I would look elsewhere.") == 2
    assert page.count("Let me look again.") >= 2
    assert "by Ada" in page


def test_a_text_is_given_in_place_of_the_guidance(start: Start, upstream: ScriptedUpstream) -> None:
    """It stands framed in the newest message, and what was given then stands nowhere."""
    server = start(storage={"raw_mb": 4})
    run_id = a_guided_run(server, upstream)
    with operator_of(server) as operator:
        last = operator.get(f"/api/runs/{run_id}").json()["steps"][-1]["step_index"]
        tries_of(operator, run_id, last)
        rule = "Ask the person where it is."
        path = f"/api/runs/{run_id}/steps/{last}/tries"
        assert operator.post(path, params={"model": PRICED, "rule": rule}).status_code == 200
    messages = upstream.last.json["messages"]
    assert rule in messages[-1]["content"]
    assert json.dumps(messages).count(FRAME_OPEN) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_every_dialect_is_sent_again(
    start: Start, upstream: ScriptedUpstream, dialect: str, stream: bool
) -> None:
    """To a deployment, with the operator's key and none of the client's; streamed if it was, but
    for Gemini, whose path is not stored."""
    params: dict[str, Any] = {"api_base": upstream.base_url, "api_key": "sk-operators"}
    if dialect == "gemini":
        params |= {"model": "gemini/m", "api_base": upstream.url}
    else:
        params |= {"model": "anthropic/m" if dialect == "messages" else "openai/m"}
    server = start(
        storage={"raw_mb": 4}, model_list=[{"model_name": "m", "litellm_params": params}]
    )
    upstream.default = Reply("The answer of then.")
    asked = {"role": "user", "content": "Say it"}
    asks: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": [asked]}),
        "responses": ("/v1/responses", {"input": [asked]}),
        "messages": ("/v1/messages", {"messages": [asked], "max_tokens": 99}),
        "gemini": ("", {"contents": [{"role": "user", "parts": [{"text": "Say it"}]}]}),
    }
    path, body = asks[dialect]
    if dialect == "gemini":
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        path = f"/v1beta/models/m:{verb}"
    else:
        body |= {"model": "m", "stream": stream}
    with operator_of(server) as client:
        answer = client.post(path, json=body, headers={"authorization": "Bearer sk-clients"})
        assert answer.status_code == 200, answer.text
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        then = upstream.last.json
        until(lambda: client.get(f"/api/runs/{run_id}").status_code == 200)
        found = tries_of(client, run_id, 0, model="m")
        assert found["price"]["problem"] == ""
        (step,) = client.get(f"/api/runs/{run_id}").json()["steps"]
        assert step["call"]["lane"] == "native"
        upstream.default = Reply("The answer of now.")
        made = client.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": "m"}).json()
    assert (made["answer"], made["error"]) == ("The answer of now.", "")
    assert made["output"] > 0
    request = upstream.last
    assert request.json == then
    assert "sk-clients" not in str(request.headers)
    assert "sk-operators" in str(request.headers)


def test_a_call_in_an_envelope_is_sent_again_without_it(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """A call of Gemini CLI with a Google account: to the Gemini API, which knows no session."""
    params = {"model": "gemini/m", "api_base": upstream.url, "api_key": "sk-operators"}
    own = {"api_base": upstream.base_url, "code_assist_api_base": upstream.url}
    server = start(
        storage={"raw_mb": 4},
        model_list=[{"model_name": "m", "litellm_params": params}],
        default_upstream=own,
    )
    upstream.default = Reply("The answer of then.")
    inner = {"contents": [{"role": "user", "parts": [{"text": "Say it"}]}]}
    body = {"model": "g", "project": "p", "request": {**inner, "session_id": "s"}}
    with operator_of(server) as client:
        path = "/v1internal:streamGenerateContent?alt=sse"
        answer = client.post(path, json=body, headers={"authorization": "Bearer ya29.x"})
        assert answer.status_code == 200, answer.text
        then = dict(upstream.last.json["request"])
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        until(lambda: client.get(f"/api/runs/{run_id}").status_code == 200)
        tries_of(client, run_id, 0, model="m")
        upstream.default = Reply("The answer of now.")
        made = client.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": "m"}).json()
    assert (made["answer"], made["error"]) == ("The answer of now.", "")
    assert then.pop("session_id") == "s"
    assert upstream.last.json == then
    assert "ya29" not in str(upstream.last.headers)


def test_the_error_of_the_provider_is_shown(start: Start, upstream: ScriptedUpstream) -> None:
    """A try that fails is a try, with the words of the provider."""
    server = start(storage={"raw_mb": 4}, router={"num_retries": 0})
    run_id = a_guided_run(server, upstream, steps=1)
    with operator_of(server) as operator:
        tries_of(operator, run_id, 0)
        upstream.script(Fault(FaultKind.CONTEXT_LENGTH))
        made = operator.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": PRICED}).json()
        page = operator.get(f"/dashboard/runs/{run_id}/steps/0/raw").text
    assert "context" in made["error"].lower()
    assert html.escape(made["error"][:30]) in page


def test_without_a_key_of_the_operators_nothing_is_sent(
    start: Start, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's login is not stored: the page and the API say so, and name the settings."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    theirs = {"model_name": "theirs", "litellm_params": {"model": "openai/gpt-4o"}}
    server = start(storage={"raw_mb": 4}, model_list=[theirs])
    run_id = a_guided_run(server, upstream, steps=1)
    with operator_of(server) as operator:
        assert tries_of(operator, run_id, 0)["price"]["problem"] == ""
        assert "api.openai.com" in tries_of(operator, run_id, 0, model="theirs")["price"]["problem"]
        made = operator.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": "theirs"})
        page = operator.get(f"/dashboard/runs/{run_id}/steps/0/raw?model=theirs").text
    assert made.status_code == 400
    assert "model_list" in made.text
    assert "login is never stored" in page
    assert "Send it once" not in page


def test_what_the_provider_stores_is_not_added_to(start: Start, upstream: ScriptedUpstream) -> None:
    """A request that continues a conversation of the provider's would be its next turn."""
    server = start(storage={"raw_mb": 4})
    with operator_of(server) as client:
        body = {"model": "m", "input": "Say it", "conversation": "conv_1"}
        answer = client.post("/v1/responses", json=body)
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        until(lambda: client.get(f"/api/runs/{run_id}").status_code == 200)
        assert "would add the try" in tries_of(client, run_id, 0)["price"]["problem"]


def test_a_stored_request_that_cannot_be_sent_says_why(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """One that was cut is no JSON any more; a model of no known provider has no host."""
    server = start(storage={"raw_mb": 4, "raw_max_kb": 0.1})
    run_id = a_guided_run(server, upstream, steps=1)
    path = f"/api/runs/{run_id}/steps/0/tries"
    with operator_of(server) as operator:
        assert "JSON" in tries_of(operator, run_id, 0)["price"]["problem"]
        assert operator.post(path, params={"model": PRICED}).status_code == 400
        assert operator.get(f"/dashboard/runs/{run_id}/steps/0/raw").status_code == 200
    other = start(storage={"raw_mb": 4}, default_upstream={"provider_prefixes": True})
    run_id = a_guided_run(other, upstream, steps=1)
    with operator_of(other) as operator:
        found = tries_of(operator, run_id, 0, model="openai/gpt-4o")
        assert "api.openai.com" in found["price"]["problem"]


def test_an_answer_that_was_made_in_the_background_is_waited_for(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """Nobody would fetch it."""
    server = start(storage={"raw_mb": 4})
    with operator_of(server) as client:
        body = {"model": "m", "input": "Say it", "background": True, "store": True}
        run_id = f"{client.post('/v1/responses', json=body).headers['x-gateway-conversation-id']}.0"
        until(lambda: client.get(f"/api/runs/{run_id}").status_code == 200)
        tries_of(client, run_id, 0)
        made = client.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": "m"}).json()
    assert made["answer"]
    assert "background" not in upstream.last.json


def test_two_runs_are_compared_where_they_part(start: Start, upstream: ScriptedUpstream) -> None:
    """By what was answered at each step: the same beginning, then other calls, then equal ones
    again; a session is all its runs."""
    server = start()
    with operator_of(server) as client:
        agents = [LoopingAgent(client, upstream, "Find the file") for _ in range(2)]
        for agent, results in zip(agents, ("aab", "aaccb"), strict=True):
            for each in results:
                agent.step(result=f"Error: no such file {each}", command=f"ls {each}")
            agent.answer()
        first, second = (agent.run_id for agent in agents)
        found = client.get(f"/api/runs/{first}/compare", params={"other": second}).json()
        page = client.get(f"/dashboard/runs/{first}/steps/0/raw", params={"other": second}).text
        session = client.get(
            f"/api/runs/{first}/compare", params={"other": second.rpartition(".")[0]}
        ).json()
        missing = client.get(f"/api/runs/{first}/compare", params={"other": "none"})
        not_shown = client.get(f"/dashboard/runs/{first}/steps/0/raw", params={"other": "none"})
    sizes = [len(side["steps"]) for side in found["sides"]]
    assert sizes == [4, 6]
    assert found["blocks"] == [
        ["equal", 0, 2, 0, 2],  # two calls
        ["insert", 2, 2, 2, 4],
        ["equal", 2, 4, 4, 6],  # a call and the final answer
    ]
    assert "2 steps are the same from the beginning; then they part" in " ".join(page.split())
    assert session["sides"][1]["steps"] == found["sides"][1]["steps"]
    assert missing.status_code == not_shown.status_code == 404
    rows = re.findall(r'<tr><th scope="row">([=≠])', page)
    assert rows == ["=", "=", "≠", "≠", "=", "="]
    assert "ls c" in html.unescape(page)


def test_runs_of_equal_calls_part_at_their_last_answers(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """No later step has the final answer: both are shown, and are not called the same."""
    server = start()
    with operator_of(server) as client:
        ids = []
        for said in ("It is in the cellar.", "There is none."):
            agent = LoopingAgent(client, upstream, "Find the file")
            agent.step()
            agent.answer(said)
            ids.append(agent.run_id)
        page = client.get(f"/dashboard/runs/{ids[0]}/steps/0/raw", params={"other": ids[1]}).text
    words = " ".join(page.split())
    assert "1 step is the same from the beginning; then they part" in words
    assert re.findall(r'<tr><th scope="row">([=≠])', page) == ["=", "≠"]
    compared = words[words.index("Here they part") :]
    assert compared.index("It is in the cellar.") < compared.index("There is none.")


@pytest.mark.parametrize(
    ("storage", "reason"),
    [({}, "storage.raw_mb: 0"), ({"store_content": False, "raw_mb": 4}, "store_content: false")],
)
def test_it_says_why_there_is_nothing_to_show_and_to_send(
    start: Start, upstream: ScriptedUpstream, storage: dict[str, Any], reason: str
) -> None:
    """Only a call whose request is stored can be seen and sent again: nothing is kept unasked, and
    nothing where texts are not."""
    server = start(storage=storage)
    run_id = a_guided_run(server, upstream, steps=1)
    with operator_of(server) as operator:
        assert reason in tries_of(operator, run_id, 0)["price"]["problem"]
        refused = operator.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": "m"})
        assert refused.status_code == 400
        assert reason in refused.text
        assert reason in operator.get(f"/dashboard/runs/{run_id}/steps/0/raw").text


@pytest.mark.parametrize(
    ("own", "most"),
    [
        ({"max_tokens": 1000}, 1000),
        ({"max_tokens": 1000, "n": 5}, 5000),
        ({"max_tokens": 10**30}, 10**9),
        ({"max_tokens": -1, "n": -3}, 16384),
        ({"max_tokens": "many", "n": "5"}, 16384),
    ],
)
def test_the_price_is_that_of_all_answers(
    start: Start, upstream: ScriptedUpstream, own: dict[str, Any], most: int
) -> None:
    """Of each that was asked for, whatever numbers the client wrote."""
    server = start(storage={"raw_mb": 4})
    upstream.default = Reply("Here.")
    body = {"model": PRICED, "messages": [{"role": "user", "content": "Find it."}], **own}
    with client_of(server) as client:
        answer = client.post("/v1/chat/completions", json=body)
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        (step,) = client.get(f"/api/runs/{run_id}").json()["steps"]
        price = tries_of(client, run_id, step["step_index"])["price"]
        assert client.get(f"/dashboard/runs/{run_id}/steps/{step['step_index']}/raw").is_success
    assert price["most_output_tokens"] == most
    low, high = price["usd"]
    assert high - low == pytest.approx(most * 1e-5)


@pytest.mark.parametrize(("other", "known"), [("gpt-4", True), ("made-by-nobody", False)])
def test_the_price_is_that_of_the_dearest_fallback(
    start: Start, upstream: ScriptedUpstream, other: str, known: bool
) -> None:
    """A try goes there, too; where nobody knows its price, nobody knows that of the try."""
    server = start(storage={"raw_mb": 4}, router={"fallbacks": [{"gpt-4o-mini": [other]}]})
    run_id = a_guided_run(server, upstream, steps=1)
    with client_of(server) as client:
        _, high = tries_of(client, run_id, 0, model="gpt-4o-mini")["price"]["usd"]
        page = client.get(f"/dashboard/runs/{run_id}/steps/0/raw?model=gpt-4o-mini").text
    if known:
        assert high > 16384 * 6e-5 * 0.99
    assert (high is not None) is known
    assert ("unknown, no list has this model or one of its fallbacks" in page) is not known


@with_keys
def test_only_the_admin_key_sends(start: Start, upstream: ScriptedUpstream) -> None:
    """A tenant's key sees the tries of its own runs and the price, and sends none; another one's
    sees nothing."""
    admin, acme, other = "gw-admin-1234567890", "gw-acme-1234567890", "gw-other-1234567890"
    server = start(
        storage={"raw_mb": 4},
        auth={"admin_key": admin, "gateway_keys": {"acme": acme, "other": other}},
    )
    with client_of(server, acme) as client, client_of(server, admin) as operator:
        agent = LoopingAgent(client, upstream, "Find the file")
        agent.step()
        path = f"/api/runs/{agent.run_id}/steps/0/tries"
        tries_of(operator, agent.run_id, 0)
        assert operator.post(path, params={"model": PRICED}).status_code == 200
        sent = len(upstream.requests)
        page = f"/dashboard/runs/{agent.run_id}/steps/0/raw"
        for refused in (client.post(path, params={"model": PRICED}), client.post(page)):
            assert refused.status_code == 403
        assert len(upstream.requests) == sent
        assert len(tries_of(client, agent.run_id, 0)["tries"]) == 1
        assert "Sending needs the admin key" in client.get(page).text
        with client_of(server, other) as stranger:
            answer = stranger.get(path, params={"model": PRICED}).json()
            assert answer["tries"] == []
            assert "not stored" in answer["price"]["problem"]


@with_budgets
def test_a_try_counts_on_the_budgets_of_the_tenant_and_not_on_those_of_the_run(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """One that is used up refuses it, in its own words."""
    budgets = [
        {"name": "day", "scope": "tenant", "period": "day", "limits": {"calls": 3}},
        {"name": "each", "scope": "run", "limits": {"calls": 2}},
    ]
    server = start(storage={"raw_mb": 4}, budgets=budgets)
    run_id = a_guided_run(server, upstream, steps=2)
    with operator_of(server) as operator:
        tries_of(operator, run_id, 0)
        path = f"/api/runs/{run_id}/steps/0/tries"
        assert operator.post(path, params={"model": PRICED}).status_code == 200
        sent = len(upstream.requests)
        refused = operator.post(path, params={"model": PRICED})
        assert "3-call budget is used" in refused.text
        assert len(upstream.requests) == sent
        accounts = operator.get("/api/budgets").json()["accounts"]
    spent = {each["budget"]: each["spent"]["calls"] for each in accounts}
    assert spent == {"day": 3, "each": 2}


def test_the_form_sends_one_call_and_shows_it(start: Start, upstream: ScriptedUpstream) -> None:
    """The button says the price; what was chosen stays chosen."""
    server = start(storage={"raw_mb": 4})
    run_id = a_guided_run(server, upstream, steps=1)
    with httpx.Client(base_url=server.url, headers=CONTROL, timeout=120) as operator:
        tries_of(operator, run_id, 0)
        page = f"/dashboard/runs/{run_id}/steps/0/raw?model=gpt-4o-mini&guidance=none"
        assert re.search(r"Send it once for up to \$\d", operator.get(page).text)
        before = len(upstream.requests)
        upstream.default = Reply("Said by the other one.")
        made = operator.post(page)
        assert made.status_code == 303
        assert len(upstream.requests) == before + 1
        shown = operator.get(str(made.url.join(made.headers["location"]))).text
        acts = operator.get("/api/audit", params={"subject": run_id}).json()["acts"]
    assert "Said by the other one." in shown
    assert 'value="gpt-4o-mini"' in shown
    assert len(acts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["chat", "messages", "gemini"])
def test_a_translated_call_is_translated_again(
    start: Start, upstream: ScriptedUpstream, dialect: str
) -> None:
    """The request is stored in the client's form, and goes to any deployment from there."""
    provider = "anthropic" if dialect == "chat" else "openai"
    where = upstream.url if dialect == "chat" else upstream.base_url
    params = {"model": f"{provider}/m", "api_base": where, "api_key": "sk-operators"}
    server = start(
        storage={"raw_mb": 4}, model_list=[{"model_name": "m", "litellm_params": params}]
    )
    upstream.default = Reply("The answer of then.")
    asked = {"role": "user", "content": "Say it"}
    asks: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"model": "m", "messages": [asked]}),
        "messages": ("/v1/messages", {"model": "m", "messages": [asked], "max_tokens": 99}),
        "gemini": (
            "/v1beta/models/m:generateContent",
            {"contents": [{"role": "user", "parts": [{"text": "Say it"}]}]},
        ),
    }
    path, body = asks[dialect]
    with operator_of(server) as client:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
        then = upstream.last.json
        until(lambda: client.get(f"/api/runs/{run_id}").status_code == 200)
        tries_of(client, run_id, 0, model="m")
        (step,) = client.get(f"/api/runs/{run_id}").json()["steps"]
        assert step["call"]["lane"] == "litellm"
        upstream.default = Reply("The answer of now.")
        made = client.post(f"/api/runs/{run_id}/steps/0/tries", params={"model": "m"}).json()
    assert (made["answer"], made["error"]) == ("The answer of now.", "")
    assert upstream.last.json == then
