"""A runaway agent of each dialect is stopped by its budget, and every place says so at once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.browser import chromium, new_tab, running
from steering_gateway_testing.official import anthropic, openai
from steering_gateway_testing.patience import until
from steering_gateway_testing.receiver import Receiver, alerting
from steering_gateway_testing.runaway import Runaway
from tests.dialects.test_gemini import MODEL, SHELL, body_of, parts_of
from tests.examples import by_day
from tests.postgres import empty_database

Start = Callable[..., AppServer]
SHOTS = os.environ.get("GATEWAY_SCREENSHOTS")
LOOPING = Reply(
    "Let me run the test again.",
    tool_calls=(ToolCall("bash", {"command": "pytest"}),),
    usage=Usage(prompt_tokens=10_000, completion_tokens=1_000),
)
USD = {"chat": 0.0095, "responses": 0.0095, "messages": 0.07, "gemini": 0.1}
"""Room for four calls of each dialect's model and a part of a fifth."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


def gateway(start: Start, upstream: ScriptedUpstream, receiver: Receiver, **more: Any) -> AppServer:
    upstream.default = LOOPING
    budgets = [
        {"name": f"per-task-{n}", "scope": "tree", "limits": {"usd": usd}, "match": {"client": n}}
        | {"stop_with": "answer" if n in ("chat", "gemini") else "error"}
        for n, usd in {f"{name}*": usd for name, usd in USD.items()}.items()
    ]
    for budget in budgets:
        budget["name"] = str(budget["name"]).rstrip("*")
    own = {"api_base": upstream.base_url, "gemini_api_base": upstream.url}
    alerts = alerting(
        receiver,
        rules={"budget": [], "run_stuck": None, "trouble": False},
        base_url="http://gateway.test",
    )
    return start({"default_upstream": own, "alerts": alerts, "budgets": budgets, **more})


def run_away(server: AppServer, dialect: str, *, streamed: bool) -> str:
    """Call until the budget ends it; the words by which the client is refused."""
    if dialect == "gemini":
        return _gemini(server, "streamGenerateContent?alt=sse" if streamed else "generateContent")
    refused = (openai.RateLimitError, anthropic.RateLimitError)
    with Runaway(server, dialect, streamed=streamed, name=dialect) as agent:
        try:
            agent.run()
        except refused as error:
            return str(error.response.json()["error"]["message"])
        return agent.last


def _gemini(server: AppServer, form: str) -> str:
    body = body_of()
    for _ in range(40):
        url = f"{server.url}{MODEL}:{form}"
        answer = httpx.post(url, json=body, headers={"user-agent": "gemini/1"})
        if answer.status_code != 200:
            return str(answer.json()["error"]["message"])
        parts = parts_of(answer)
        if not any("functionCall" in part for part in parts):
            return "".join(part.get("text", "") for part in parts)
        result = {"functionResponse": {"name": SHELL, "response": {"error": "FAILED test_a"}}}
        body["contents"] += [{"role": "model", "parts": parts}, {"role": "user", "parts": [result]}]
    raise AssertionError("it is not stopped")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", by_day(list(USD), 2))
def test_every_place_says_stopped(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
    streamed: bool,
) -> None:
    """The client, Now, the run's page, the list, the API, the alert and the terminal: by what, why,
    and, but for the client, the command that lets it go on, which does."""
    database = empty_database() if (dialect, streamed) == ("chat", True) else None
    with database or contextlib.nullcontext("") as url:
        more = {"storage": {"url": url}} if url else {}
        server = gateway(gateway_server, upstream, receiver, **more)
        said = run_away(server, dialect, streamed=streamed)
        run = until(partial(_stopped, server))
        stop = run["stopped"]
        name, go_on = f"per-task-{dialect}", stop["go_on"]
        assert (stop["by"], stop["name"]) == ("budget", name)
        assert go_on.startswith(f"gateway budgets raise {name} ")
        assert (
            said.removeprefix("Stopped by the gateway: ")
            .removeprefix("Stopped: ")
            .startswith(f"{stop['why']} The person who runs the gateway can raise the limit.")
        )
        assert "gateway budgets" not in said
        assert stop["why"].startswith("$")
        words = f"stopped by budget {name}"
        for path in ("", "/runs?stopped=budget", f"/runs/{run['id']}"):
            page = unescape(httpx.get(f"{server.url}/dashboard{path}").text)
            assert words in page.replace("Stopped by budget", "stopped by budget"), path
            assert stop["why"] in page, path
            assert path.startswith("/runs?") or go_on in page, path
        (alert,) = until(lambda: [each for m in receiver.messages for each in m["alerts"]])
        assert (alert["rule"], alert["severity"]) == ("run_stopped", "danger")
        assert alert["title"].startswith(f"A run was {words}: {stop['why']}")
        assert alert["facts"]["run_id"] == run["id"]
        assert alert["facts"]["go_on"] == go_on
        assert alert["link"] == f"http://gateway.test/dashboard/runs/{run['id']}"

        storage = server.app.runtime.settings.storage
        monkeypatch.setenv("GATEWAY_STORAGE__PATH", storage.path)
        if url:
            monkeypatch.setenv("GATEWAY_STORAGE__URL", url)
        monkeypatch.setenv("COLUMNS", "200")
        assert main(["runs", "list", "--stopped"]) == 0
        assert words in capsys.readouterr().out
        assert main(["runs", "show", run["id"]]) == 0
        assert f"to let it go on: {go_on}" in capsys.readouterr().out
        sent = len(upstream.requests)
        assert main(go_on.split()[1:]) == 0
        run_away(server, dialect, streamed=streamed)
        assert len(upstream.requests) > sent


def _stopped(server: AppServer) -> dict[str, Any] | None:
    """The stopped run, once its refused call is recorded."""
    listed = httpx.get(f"{server.url}/api/runs", params={"stopped": "budget"}).json()["runs"]
    return dict(listed[0]) if listed else None


_SEEN = """
JSON.stringify([...document.querySelectorAll('.stopped p')].map(p => {
    const box = p.getBoundingClientRect();
    return [box.top, box.bottom, box.left, box.right, p.innerText];
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
async def test_the_first_screen_of_a_stopped_run_answers(
    gateway_server: Start, upstream: ScriptedUpstream, receiver: Receiver, tmp_path: Path
) -> None:
    """Why did it stop, who may go on, what did it cost: all of it is above the fold, at both
    widths and in both colour schemes, and nothing is wider than the page."""
    server = gateway(gateway_server, upstream, receiver)
    run_away(server, "messages", streamed=False)
    run = until(partial(_stopped, server))
    pages = {"run": f"/runs/{run['id']}", "now": "", "runs": "/runs?stopped=yes"}
    with running(tmp_path) as port:
        async with new_tab(port) as tab:
            for width, height in ((1440, 900), (390, 844)):
                for dark in (False, True):
                    await tab.look(width=width, height=height, dark=dark)
                    for name, path in pages.items():
                        await tab.open(f"{server.url}/dashboard{path}")
                        if SHOTS:
                            shot = f"stopped-{name}-{width}-{'dark' if dark else 'light'}.png"
                            await tab.picture(Path(SHOTS) / shot)
                        wide = await tab.js("document.documentElement.scrollWidth")
                        assert wide <= width, (name, width)
                    await tab.open(f"{server.url}/dashboard{pages['run']}")
                    seen = json.loads(await tab.js(_SEEN))
                    words = " ".join(text for *_, text in seen)
                    for answer in ("$", "budget is used", "Who may let it go on", "Cost: "):
                        assert answer in words
                    assert run["stopped"]["go_on"] in words
                    for top, bottom, left, right, _ in seen:
                        assert top >= 0
                        assert bottom <= height, (width, seen)
                        assert left >= 0
                        assert right <= width
