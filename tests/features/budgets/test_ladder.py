"""The steps of a budget's ladder, and where a budget holds: modes, fallbacks, restarts, days."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.patience import until
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall, Usage
from tests.holds.test_holds import MAIN, ask

Start = Callable[..., AppServer]
CALLING = Reply(
    "Look.",
    tool_calls=(ToolCall("ls", {}),),
    usage=Usage(prompt_tokens=1_000, completion_tokens=100),
)


def named(name: str, calls: int = 4, **more: Any) -> dict[str, Any]:
    """A budget for the calls of one client in one run."""
    limits = {"limits": {"calls": calls}, "match": {"client": f"{name}*"}}
    return {"name": name, "scope": "run", **limits, **more}


def call(server: AppServer, client: str, step: int, **headers: str) -> httpx.Response:
    """One call of a client's run."""
    own = {"x-session-id": client, "user-agent": client, **headers}
    return ask(server, own, step, model="gpt-4o")


def test_each_step_does_what_it_says(
    gateway_server: Start, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warned from half on, asked to wrap up, sent to a cheaper model, stopped; told once each."""
    upstream.default = CALLING
    ladder = [
        {"at": 0.25, "do": "warn"},
        {"at": 0.5, "do": "wrap_up"},
        {"at": 0.75, "cheaper": "gpt-4o-mini"},
        {"at": 1.0, "do": "stop"},
    ]
    server = gateway_server({"budgets": [named("all", ladder=ladder)]})
    told: list[Any] = []
    monkeypatch.setattr(server.app.runtime.events, "publish", told.append)
    answers = [call(server, "all", step) for step in range(5)]

    assert [answer.status_code for answer in answers] == [200] * 4 + [429]
    shown = [answer.headers.get("x-gateway-budget") for answer in answers[:4]]
    assert shown[0] is None
    assert shown[1] == "all;used=0.25;metric=calls;step=warn"
    assert shown[3] == "all;used=0.75;metric=calls;step=cheaper"
    asked = [request.model for request in upstream.requests]
    assert asked == ["gpt-4o"] * 3 + ["gpt-4o-mini"]
    directives = [r.body.decode().count("WRAP UP: budget all: ") for r in upstream.requests]
    assert directives == [0, 0, 1, 1]
    assert [event["step"] for event in told if event["type"] == "budget"] == [
        "warn",
        "wrap_up",
        "cheaper",
        "stop",
    ]
    run_id = f"{answers[0].headers['x-gateway-conversation-id']}.0"

    def trace() -> Any:
        return httpx.get(f"{server.url}/api/runs/{run_id}").json()

    # A refused call is recorded behind its answer.
    until(lambda: len(trace()["steps"]) == len(answers))
    calls = [step["call"] for step in trace()["steps"]]
    reasons = [reason for each in calls for reason in each["reasons"]]
    assert "budget: all: 2 of 4 calls used, 2 calls left at the usual cost" in reasons
    assert "budget: gpt-4o-mini instead of gpt-4o" in reasons
    refused = calls[-1]
    assert (refused["status"], refused["error"], refused["cost_usd"]) == (429, "budget", None)
    assert trace()["run"]["totals"]["unpriced_calls"] == 0
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'gateway_budget_steps_total{budget="all",step="warn"} 1.0' in metrics
    assert 'gateway_budget_stops_total{budget="all"} 1.0' in metrics


def test_a_mode_does_not_escape_a_budget(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Off is held like on; in shadow everything is sent and what would have been is recorded. No
    client can choose shadow for that, whatever key it has."""
    upstream.default = CALLING
    auth = {"admin_key": "a" * 40}
    server = gateway_server({"budgets": [named("m", calls=1)], "auth": auth})
    for mode in ("on", "off", "shadow"):
        client, header = f"m-{mode}", {"x-gateway-mode": mode, "x-gateway-key": "a" * 40}
        assert call(server, client, 0, **header).status_code == 200
        assert call(server, client, 1, **header).status_code == 429

    shadow = gateway_server({"budgets": [named("m", calls=1)], "steering": {"mode": "shadow"}})
    answers = [call(shadow, "m", step) for step in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[2].headers["x-gateway-budget"] == "m;used=2;metric=calls;step=would_stop"
    run_id = f"{answers[0].headers['x-gateway-conversation-id']}.0"
    trace = httpx.get(f"{shadow.url}/api/runs/{run_id}").json()
    reasons = [reason for step in trace["steps"] for reason in step["call"]["reasons"]]
    assert sum("budgets raise m " in reason for reason in reasons) == 2


def test_a_fallback_is_paid_from_the_same_budget(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A dearer fallback that is not covered is not asked; one that is costs its own price."""
    dear = {"input_cost_per_token": 1e-3, "output_cost_per_token": 1e-3}
    cheap = {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    place = {"api_base": upstream.base_url, "api_key": "k"}
    models = [
        {"model_name": "gpt-4o", "litellm_params": {"model": "openai/cheap", **place, **cheap}},
        {"model_name": "big", "litellm_params": {"model": "openai/dear", **place, **dear}},
    ]
    poor = {"scope": "run", "limits": {"usd": 0.1}, "match": {"client": "poor*"}}
    rich = {"scope": "run", "limits": {"usd": 9.0}, "match": {"client": "rich*"}}
    settings = {
        "model_list": models,
        "router": {"fallbacks": [{"gpt-4o": ["big"]}], "num_retries": 0, "cooldown_s": 0},
        "budgets": [{"name": "poor", **poor}, {"name": "rich", **rich}],
    }
    server = gateway_server(settings)
    upstream.script(Fault(FaultKind.SERVER_ERROR), CALLING)
    assert call(server, "rich", 0).status_code == 200
    assert [request.model for request in upstream.requests] == ["cheap", "dear"]
    (account,) = httpx.get(f"{server.url}/api/budgets?budget=rich").json()["accounts"]
    assert account["spent"] == {"usd": 1.1, "input_tokens": 1_000, "output_tokens": 100, "calls": 1}
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]
    assert run["totals"]["cost_usd"] == 1.1
    upstream.reset()
    upstream.script(Fault(FaultKind.SERVER_ERROR), CALLING)
    assert call(server, "poor", 0).status_code == 500
    assert [request.model for request in upstream.requests] == ["cheap"]


def test_accounts_outlive_the_gateway_and_days_end(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """After a restart the count goes on; a refusal of a day's budget says when it ends."""
    upstream.default = CALLING
    settings = {
        "storage": {"path": str(tmp_path / "kept.db")},
        "budgets": [{"name": "day", "scope": "day", "limits": {"calls": 3}}],
    }
    first = gateway_server(settings)
    assert [call(first, "a", step).status_code for step in range(2)] == [200, 200]
    first.stop()
    second = gateway_server(settings)
    assert [call(second, f"b{n}", 0).status_code for n in range(2)] == [200, 429]
    refused = call(second, "c", 0)
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.json()["error"]["type"] == "insufficient_quota"
    assert len(upstream.requests) == 3


def test_without_budgets_nothing_is_read_or_changed(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Neither accounts nor holds are looked up for a call, and the bytes are the client's."""
    upstream.default = CALLING
    server = gateway_server({"steering": {"mode": "off"}})
    runtime = server.app.runtime
    asked: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AssertionError(name)

    runtime.accounting.ledger._store = Watched()
    answer = ask(server, {**MAIN, "x-gateway-tag-team": "red"})
    assert answer.status_code == 200
    assert upstream.last.body == answer.request.content
    assert not any(name.startswith(b"x-gateway-tag") for name, _ in upstream.last.headers)
    assert "x-gateway-budget" not in answer.headers
    assert asked == []


def test_a_client_that_leaves_is_charged_for_what_came(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Its reservation ends with an estimate of the part that arrived; so does a failed call's."""
    upstream.default = Reply("word " * 400, chunk_delay_s=0.02)
    budget = {"name": "all", "scope": "tenant", "limits": {"tokens": 10**6}}
    server = gateway_server({"budgets": [budget]})
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as answer:
        chunks = answer.iter_raw()
        for _ in range(5):
            next(chunks)

    def account() -> dict[str, Any]:
        (found,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
        return dict(found)

    until(lambda: account()["reserved"]["calls"] == 0)
    spent = account()["spent"]
    assert spent["calls"] == 1
    assert 0 < spent["output_tokens"] < 400
    upstream.default = Fault(FaultKind.BAD_REQUEST)
    assert call(server, "bad", 0).status_code == 400
    until(lambda: account()["reserved"]["calls"] == 0)
    assert account()["spent"] == {**spent, "calls": 2}


def test_a_background_answer_is_charged_when_it_is_fetched(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Until then its estimate stays reserved."""
    upstream.default = Reply("Done.", usage=Usage(prompt_tokens=70, completion_tokens=7))
    budget = {"name": "all", "scope": "tenant", "limits": {"tokens": 10**6}}
    server = gateway_server({"budgets": [budget]})
    body = {"model": "gpt-5", "input": "go", "background": True}
    made = httpx.post(f"{server.base_url}/responses", json=body).json()
    assert made["status"] == "queued"

    def account() -> dict[str, Any]:
        (found,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
        return dict(found)

    assert (account()["reserved"]["calls"], account()["spent"]["calls"]) == (1, 0)
    url = f"{server.base_url}/responses/{made['id']}"
    until(lambda: httpx.get(url).json()["status"] == "completed")
    assert account()["reserved"]["calls"] == 0
    spent = account()["spent"]
    assert (spent["calls"], spent["input_tokens"], spent["output_tokens"]) == (1, 70, 7)


def ask_for_much(server: AppServer, text: str) -> httpx.Response:
    """A call that may get 64,000 tokens."""
    messages = [{"role": "user", "content": text}]
    body = {"model": "gpt-4o", "max_tokens": 64_000, "messages": messages}
    return httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=120)


def test_a_reservation_alone_refuses_nothing(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A title call that asks for 64,000 tokens is on its way: the agent's first prompt is sent, and
    is not asked to wrap up; what is reserved is shown apart from what is used."""
    slow = Reply(
        "A title", first_byte_delay_s=3, usage=Usage(prompt_tokens=50, completion_tokens=9)
    )
    quick = Reply("Hello", usage=Usage(prompt_tokens=500, completion_tokens=20))
    upstream.default = lambda request: slow if b"title" in request.body else quick
    ladder = [{"at": 0.5, "do": "wrap_up"}, {"at": 1.0, "do": "stop"}]
    budget = {"name": "wrap", "scope": "tenant", "limits": {"usd": 0.05}, "ladder": ladder}
    server = gateway_server({"budgets": [budget]})

    with ThreadPoolExecutor(2) as two:
        first = two.submit(ask_for_much, server, "title")
        until(lambda: len(upstream.requests) == 1)
        (account,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
        assert account["reserved"]["usd"] > 0.04
        assert (account["spent"]["usd"], account["used"], account["step"]) == (0, 0, None)
        for page in ("", "/runs"):
            assert "82%" not in httpx.get(f"{server.url}/dashboard{page}").text
        answer = ask_for_much(server, "Mend the bridge.")
        assert (answer.status_code, answer.headers.get("x-gateway-budget")) == (200, None)
        assert "WRAP UP" not in upstream.last.body.decode()
        assert first.result().status_code == 200


@pytest.mark.parametrize(("hard", "status"), [(False, 200), (True, 429)])
def test_a_hard_budget_waits_for_no_luck(
    gateway_server: Start, upstream: ScriptedUpstream, hard: bool, status: int
) -> None:
    """A call that fits only if the one on its way uses less than it reserved is refused by a hard
    budget, and may be sent again at once."""
    slow = Reply("Done", first_byte_delay_s=9, usage=Usage(prompt_tokens=50, completion_tokens=9))
    upstream.default = slow
    limits = {"tokens": 70_000}
    budget = {"name": "b", "scope": "tenant", "limits": limits, "reserve": "most", "hard": hard}
    server = gateway_server({"budgets": [budget]})

    with ThreadPoolExecutor(2) as two:
        first = two.submit(ask_for_much, server, "one")
        until(lambda: len(upstream.requests) == 1)
        second = ask_for_much(server, "two")
        assert second.status_code == status
        assert not hard or second.headers["retry-after"] == "1"
        assert first.result().status_code == 200


def test_the_last_call_that_fits_asks_for_the_work(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Below the share of the step, too: after it there is none. The call that is refused has no
    guidance, in its answer, its record or the run's memory."""
    upstream.default = CALLING
    ladder = [{"at": 0.99, "do": "wrap_up"}, {"at": 1.0, "do": "stop"}]
    budget = {"name": "small", "scope": "run", "limits": {"tokens": 3800}, "ladder": ladder}
    server = gateway_server({"budgets": [budget]})
    answers = [ask(server, MAIN, step) for step in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    texts = [request.body.decode() for request in upstream.requests]
    assert ["WRAP UP" in text for text in texts] == [False, False, True]
    assert "budget small: 2,200 of 3,800 tokens used, 1 call left at the usual cost" in texts[2]
    assert "x-gateway-guidance" in answers[2].headers
    assert "x-gateway-guidance" not in answers[3].headers
    run_id = f"{answers[0].headers['x-gateway-conversation-id']}.0"

    def steps() -> Any:
        return httpx.get(f"{server.url}/api/runs/{run_id}").json()["steps"]

    until(lambda: len(steps()) == 4)
    assert [[g["source"] for g in step["guidance"]] for step in steps()] == [[], [], ["skip"], []]
    assert steps()[3]["acts"] == []


def test_a_model_of_unknown_price_is_refused_where_that_is_set(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """With its name, the budget and the settings; one of known price, and any without a budget in
    dollars, is asked. Counted as another model, it costs what that would."""
    upstream.default = CALLING
    budget = {"name": "b", "scope": "run", "limits": {"usd": 10}}
    server = gateway_server({"budgets": [budget], "control": {"unpriced": "refuse"}})
    refused = ask(server, MAIN, 0, model="nobody-knows-it")
    assert refused.status_code == 429
    message = refused.json()["error"]["message"]
    for words in ("'nobody-knows-it'", "budget b ", "input_cost_per_token", "control.unpriced"):
        assert words in message
    assert ask(server, MAIN, 0, model="gpt-4o").status_code == 200
    tokens = {"budgets": [budget | {"limits": {"tokens": 10**6}}]}
    server = gateway_server({**tokens, "control": {"unpriced": "refuse"}})
    assert ask(server, MAIN, 0, model="nobody-knows-it").status_code == 200
    alike = {"unpriced": "count_as", "unpriced_model": "gpt-4o"}
    server = gateway_server({"budgets": [budget], "control": alike})
    ask(server, MAIN, 0, model="gpt-4o")
    (known,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
    answer = ask(server, MAIN, 1, model="nobody-knows-it")
    assert answer.headers["x-gateway-budget"].endswith(";metric=usd;step=none;price=unknown")
    (both,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
    assert both["spent"]["usd"] == pytest.approx(2 * known["spent"]["usd"])
    assert both["unpriced"] == 1


@pytest.mark.parametrize("price", [3.0, 0.0])
def test_a_model_of_unknown_price_counts_by_its_tokens(
    gateway_server: Start, upstream: ScriptedUpstream, price: float
) -> None:
    """A budget in dollars stops it at the price for all such models, and says that it is guessed;
    a price of 0 counts none."""
    upstream.default = CALLING
    budget = {"name": "b", "scope": "run", "limits": {"usd": 0.0105}}
    own = {"control": {"unpriced_usd_per_million": price}} if not price else {}
    server = gateway_server({"budgets": [budget], **own})
    answers = [ask(server, MAIN, step, model="nobody-knows-it") for step in range(5)]
    sent = 3 if price else 5
    assert [answer.status_code for answer in answers] == [200] * sent + [429] * (5 - sent)
    (account,) = httpx.get(f"{server.url}/api/budgets").json()["accounts"]
    usd = pytest.approx(sent * 1_100 * price / 1e6)
    assert (account["spent"]["usd"], account["unpriced"]) == (usd, sent)
    assert account["estimated"] == {"usd": usd, "input_tokens": 0, "output_tokens": 0, "calls": 0}
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]
    assert (run["totals"]["cost_usd"], run["totals"]["unpriced_calls"]) == (None, sent)
