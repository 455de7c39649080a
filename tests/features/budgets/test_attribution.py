"""Who spent what: trees, tags and keys, in the API, the commands, CSV and exports."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall, Usage
from tests.holds.test_holds import ask

Start = Callable[..., AppServer]
KEYS = {"web": "w" * 40, "batch": "b" * 40}
CALL_USD = 0.0015 + 0.0006  # 10,000 tokens in, 1,000 out of gpt-4o-mini
CALLING = Reply(
    "Look.",
    tool_calls=(ToolCall("ls", {}),),
    usage=Usage(prompt_tokens=10_000, completion_tokens=1_000),
)


@pytest.fixture
def server(gateway_server: Start, upstream: ScriptedUpstream) -> AppServer:
    """A gateway that served a main agent, its sub-agent, that one's, and another client."""
    upstream.default = CALLING
    settings = {
        "auth": {"admin_key": "a" * 40, "gateway_keys": KEYS},
    }
    started = gateway_server(settings)
    web, batch = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
    red = {"x-gateway-tag-team": "red", "x-gateway-tag-Env": "prod"}
    main_agent = {**web, **red, "x-session-id": "main"}
    sub = {**web, **red, "x-session-id": "sub", "x-parent-session-id": "main"}
    deep = {**web, "x-session-id": "deep", "x-parent-session-id": "sub"}
    other = {**batch, "x-session-id": "other", "x-gateway-tag-team": "=blue"}
    for headers, calls in ((main_agent, 3), (sub, 2), (deep, 1), (other, 4)):
        for step in range(calls):
            assert ask(started, headers, step, model="gpt-4o-mini").status_code == 200
    return started


def get(server: AppServer, path: str, **params: Any) -> Any:
    """What the control plane answers to the operator."""
    answer = httpx.get(f"{server.url}/api/{path}", params=params, headers=ADMIN, timeout=120)
    assert answer.status_code == 200, answer.text
    is_json = answer.headers["content-type"] == "application/json"
    return answer.json() if is_json else answer.text


ADMIN = {"x-gateway-key": "a" * 40}


def test_the_sums_of_a_session(
    server: AppServer, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """From any conversation of it: six calls of three agents, by hand; none of another client."""
    runs = get(server, "runs", key="web")["runs"]
    assert len(runs) == 3
    found = [get(server, f"sessions/{run['conversation_id']}")["session"] for run in runs]
    assert all(session == found[0] for session in found)
    total = found[0]
    assert (total["run_count"], total["calls"], total["tokens"]) == (3, 6, 6 * 11_000)
    assert total["cost_usd"] == pytest.approx(6 * CALL_USD)
    assert sorted(run["totals"]["calls"] for run in total["runs"]) == [1, 2, 3]
    assert not any("x-gateway-tag" in name.decode() for name, _ in upstream.last.headers)


def test_tags_and_keys_are_dimensions(
    server: AppServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Filters, groups and CSV agree; a tag that looks like a formula is defused."""
    assert len(get(server, "runs", tag="team=red,env=prod")["runs"]) == 2
    assert len(get(server, "runs", tag="team")["runs"]) == 3
    (run,) = get(server, "runs", tag="team==blue")["runs"]
    assert (run["tags"], run["key_name"]) == ({"team": "=blue"}, "batch")
    groups = get(server, "usage", by="tag:team")["groups"]
    found = {group["value"]: group["sums"]["calls"] for group in groups}
    assert found == {"red": 5, "=blue": 4, "": 1}
    rows = list(csv.reader(io.StringIO(get(server, "usage", by="key", format="csv"))))
    assert [(row[0], row[2]) for row in rows] == [("key", "calls"), ("web", "6"), ("batch", "4")]
    [day] = get(server, "usage", by="day")["groups"]
    [week] = get(server, "usage", by="week")["groups"]
    assert week["sums"] == day["sums"]
    date = datetime.date.fromisoformat(day["value"])
    assert week["value"] == str(date - datetime.timedelta(days=date.weekday()))
    bad = httpx.get(f"{server.url}/api/usage", params={"by": "mood"}, headers=ADMIN, timeout=120)
    assert bad.status_code == 400
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEWAY_STORAGE__PATH", server.app.runtime.settings.storage.path)
        assert main(["runs", "usage", "--by", "tag:team", "--tag", "team", "--csv"]) == 0
        printed = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert [row[0] for row in printed] == ["tag:team", "red", "'=blue"]


def test_exports_have_every_run(server: AppServer, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines with steps, CSV with the sums, and chat messages as the agent sent them."""
    lines = [json.loads(line) for line in get(server, "export").splitlines()]
    assert [len(line["steps"]) for line in lines] == [3, 2, 1, 4]
    rows = list(csv.DictReader(io.StringIO(get(server, "export", format="csv"))))
    assert [row["calls"] for row in rows] == ["3", "2", "1", "4"]
    assert rows[0]["tags"] == "env=prod;team=red"
    assert sum(float(row["cost_usd"]) for row in rows) == pytest.approx(10 * CALL_USD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEWAY_STORAGE__PATH", server.app.runtime.settings.storage.path)
        assert main(["runs", "export", "--format", "openai", "--key", "batch"]) == 0
    (chat,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    roles = [message["role"] for message in chat["messages"]]
    assert roles == ["user", *("assistant", "tool") * 3, "assistant"]
    assert chat["messages"][2]["tool_call_id"] == chat["messages"][1]["tool_calls"][0]["id"]
    assert chat["messages"][-1]["tool_calls"][0]["function"]["name"] == "ls"
