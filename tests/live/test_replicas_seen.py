"""What is done through one gateway on a database is seen through another at the next request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.keys.keyring import make_key
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.patience import DEADLINE_MS, until
from steering_gateway_testing.store_conformance.keys import kept_keys
from tests.api.test_runs import LIKE_EVERY_STEP
from tests.features.budgets.test_ladder import CALLING
from tests.holds.test_holds import ask
from tests.postgres import shared_server

Start = Callable[..., AppServer]


def two(start: Start, database: str, **settings: Any) -> tuple[AppServer, AppServer]:
    """Gateways on one database."""
    storage = {"url": database, "commit_limit_ms": DEADLINE_MS}
    own = {"etraces": {"enabled": False}, **settings, "storage": storage}
    return start(own), start(own)


def get(server: AppServer, path: str) -> Any:
    """What the control plane answers."""
    answer = httpx.get(f"{server.url}/api/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_other_gateway_knows_at_once(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """The run log, its outcome, learning's verdicts, the experiment's arms, the budget and a hold:
    no poll and no signal is waited for, except for the hold."""
    upstream.default = CALLING
    budget = {"name": "three", "scope": "run", "limits": {"calls": 3}, "match": {"client": "a*"}}
    experiment = {"id": "e", "arms": {"on": 1, "off": 1}}
    here, there = two(
        gateway_server,
        postgres_url,
        budgets=[budget],
        experiment=experiment,
        control={"poll_s": 0.1},
    )
    client = {"x-session-id": "a", "user-agent": "a"}
    statuses = [ask(server, client, n).status_code for n, server in enumerate([here, there] * 2)]
    assert statuses == [200, 200, 200, 429]
    (run,) = get(there, "runs")["runs"]
    # The cost of the third call is counted behind its answer.
    until(lambda: [each["used"] for each in get(there, "budgets")["accounts"]] == [1.0])
    # What the third call reserved may be given back between two looks.
    until(lambda: get(here, "budgets") == get(there, "budgets"))
    # A refused call is recorded behind its answer.
    until(lambda: len(get(there, f"runs/{run['id']}")["steps"]) == 4)
    trace = get(there, f"runs/{run['id']}")
    assert [step["step_index"] for step in trace["steps"]] == [0, 1, 2, 3]
    assert trace == get(here, f"runs/{run['id']}")

    told = httpx.post(f"{here.url}/api/runs/{run['id']}/outcome", json={"outcome": "failure"})
    assert told.status_code == 200
    verdicts = get(there, f"runs/{run['id']}/outcomes")["outcomes"]
    assert [row["verdict"] for row in verdicts if row["source"] == "told_api"] == ["failure"]
    (listed,) = get(there, "experiments")["experiments"]
    assert sum(listed["runs"].values()) == 1
    assert get(there, "experiments/e/report") == get(here, "experiments/e/report")

    conversation = run["conversation_id"]
    httpx.post(
        f"{here.url}/api/conversations/{conversation}/stop",
        json={"reason": "it loops"},
        headers=CONTROL,
    )
    until(lambda: [held["subject"] for held in get(there, "held")["held"]] == [conversation])


def test_patterns_and_lessons_are_the_same(gateway_server: Start, postgres_url: str) -> None:
    """A pattern that is added, changed or removed through one, through the other too."""
    here, there = two(gateway_server, postgres_url, etraces={"enabled": True})
    answer = httpx.post(f"{here.url}/api/patterns", json=LIKE_EVERY_STEP, headers=CONTROL)
    assert answer.status_code < 300, answer.text
    assert get(there, "patterns/look-again")["tier"] == "e2"
    assert get(there, "lessons") == get(here, "lessons")
    assert httpx.delete(f"{there.url}/api/patterns/look-again", headers=CONTROL).status_code < 300
    assert httpx.get(f"{here.url}/api/patterns/look-again").status_code == 404


async def test_a_revoked_key_is_refused_without_a_signal(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """Each gateway reads the keys every `auth.poll_s`: a signal that is lost costs no more."""
    new = make_key("acme")
    operator = await open_stores(StorageSettings(url=Secret(postgres_url)))
    await kept_keys(operator).add_key(new.record)
    await operator.close()
    servers = two(gateway_server, postgres_url, auth={"poll_s": 0.1})
    mine = {"authorization": f"Bearer {new.text}"}
    assert [ask(server, mine).status_code for server in servers] == [200, 200]
    name = postgres_url.split("?")[0].rpartition("/")[2]
    shared_server().execute("UPDATE keys SET revoked_at = 1", name)  # nobody is told
    until(lambda: [ask(server, mine).status_code for server in servers] == [401, 401])


def test_a_ring_through_another_replica_is_found(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str
) -> None:
    """What one gateway has sent comes back to another on the same database: answered with 508."""
    here, there = two(gateway_server, postgres_url)
    assert ask(here, {}).status_code == 200
    mark = upstream.last.header("x-gateway-instance")
    assert mark
    looped = ask(there, {"x-gateway-instance": mark})
    assert (looped.status_code, looped.json()["error"]["code"]) == (508, "loop_detected")
