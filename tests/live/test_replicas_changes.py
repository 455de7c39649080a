"""A change through one gateway on a database holds for the calls of another, and is shown there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.patience import until
from tests.examples import by_day
from tests.features.budgets.test_ladder import CALLING
from tests.holds.test_holds import ask
from tests.live.test_replicas_seen import get, two

Start = Callable[..., AppServer]
Change = Callable[[AppServer, dict[str, Any]], httpx.Response]
Seen = Callable[[AppServer, dict[str, Any]], Any]

CLIENT = {"x-session-id": "a", "user-agent": "a", "x-gateway-tag-team": "blue"}
RULE = {"tier": "e3", "pattern_id": "r", "fields": {"instruction": "Count to ten."}}
BUDGET = {"name": "two", "scope": "run", "limits": {"calls": 2}, "match": {"client": "a*"}}
NEVER_S = 3600.0
"""Between two readings that no signal asks for."""


@pytest.fixture
def pair(
    postgres_url: str, gateway_server: Start, upstream: ScriptedUpstream
) -> tuple[AppServer, AppServer]:
    """Two gateways that read nothing again unless they are told."""
    upstream.default = CALLING
    never = {"control": {"poll_s": NEVER_S}, "auth": {"poll_s": NEVER_S}}
    return two(gateway_server, postgres_url, budgets=[BUDGET], etraces={"enabled": True}, **never)


def post(path: str, body: dict[str, Any] | None = None) -> Change:
    """A change of the run or its conversation."""
    return lambda server, ids: httpx.post(
        f"{server.url}/api/{path.format(**ids)}", json=body or {}, headers=CONTROL, timeout=120
    )


def account(verb: str, **more: Any) -> Change:
    """An operator's change of the run's budget."""
    return lambda server, ids: httpx.post(
        f"{server.url}/api/budgets/{verb}",
        json={"budget": "two", "subject": ids["account"], **more},
        headers=CONTROL,
        timeout=120,
    )


def call(server: AppServer, _ids: dict[str, Any]) -> str:
    """Why the run's next call is refused; empty when it is answered."""
    answer = ask(server, CLIENT, 2, model="gpt-4o")
    return answer.json()["error"]["code"] if answer.status_code != 200 else ""


CHANGES: dict[str, tuple[Change, Seen, Any]] = {
    "budget raised": (account("raise", limits={"calls": 9.0}), call, ""),
    "budget lifted": (account("lift"), call, ""),
    "budget reset": (account("reset"), call, ""),
    "run stopped": (post("runs/{run}/stop"), call, "run_stopped"),
    "conversation stopped": (post("conversations/{conversation}/stop"), call, "run_stopped"),
    "pattern added": (
        post("patterns", RULE),
        lambda server, _: get(server, "patterns?tier=e3")["patterns"][0]["pattern_id"],
        "r",
    ),
    "outcome told": (
        post("runs/{run}/outcome", {"outcome": "failure"}),
        lambda server, ids: get(server, f"runs/{ids['run']}")["run"]["outcome"],
        "failure",
    ),
}


@pytest.mark.parametrize("name", by_day(CHANGES, 4))
def test_a_change_holds_at_the_other_gateway(pair: tuple[AppServer, AppServer], name: str) -> None:
    """What was different before is so soon after, without another reading of its own."""
    here, there = pair
    assert [ask(here, CLIENT, step, model="gpt-4o").status_code for step in (0, 1)] == [200, 200]
    (run,) = get(there, "runs")["runs"]
    (used,) = get(there, "budgets")["accounts"]
    ids = {"run": run["id"], "conversation": run["conversation_id"], "account": used["subject"]}
    change, seen, expected = CHANGES[name]
    assert seen(there, ids) != expected
    done = change(here, ids)
    assert done.status_code < 300, done.text
    until(lambda: seen(there, ids) == expected)
