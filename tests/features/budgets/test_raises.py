"""Limits that an operator sets, and those that somebody writes into the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.patience import ANSWER_S
from tests.holds.test_holds import MAIN, ask

Start = Callable[..., AppServer]
ADMIN = {"x-gateway-key": "a" * 40}


@pytest.fixture
def server(gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path) -> AppServer:
    """A gateway with an admin key whose budget of one call is used up."""
    upstream.default = Reply("done")
    server = gateway_server(
        {
            "auth": {"admin_key": "a" * 40},
            "storage": {"path": str(tmp_path / "one.db")},
            "budgets": [{"name": "few", "scope": "tenant", "limits": {"calls": 1}}],
            "control": {"poll_s": 0.05},
        }
    )
    assert ask(server, MAIN).status_code == 200
    assert ask(server, MAIN).status_code == 429
    return server


def account(server: AppServer) -> dict[str, object]:
    (found,) = httpx.get(f"{server.url}/api/budgets", headers=ADMIN).json()["accounts"]
    assert isinstance(found, dict)
    return found


def passes_within_a_second(server: AppServer) -> bool:
    ends = time.monotonic() + 1
    while time.monotonic() < ends:
        if ask(server, MAIN).status_code == 200:
            return True
    return False


def forge(file: Path, change: str) -> None:
    """Change the account in the file, once it is there: it is written behind the answer.

    By the gateway's own SQLite: a second one in the same process would drop its locks."""
    ends = time.monotonic() + ANSWER_S
    changed = 0
    while not changed and time.monotonic() < ends:
        with closing(apsw.Connection(str(file))) as database:
            database.set_busy_timeout(120_000)
            database.execute(
                f"UPDATE budget_accounts SET {change}, version = version + 1 WHERE calls > 0"
            )
            changed = database.changes()
    assert changed == 1


@pytest.mark.parametrize("change", ["limits = '{\"calls\": 99}'", "lifted = 1"])
def test_a_limit_without_a_mac_does_not_hold(
    server: AppServer, tmp_path: Path, change: str
) -> None:
    """It is ignored and shown as what it is; a raise with the key holds again."""
    account(server)
    forge(tmp_path / "one.db", change)
    assert not passes_within_a_second(server)
    found = account(server)
    assert (found["forged"], found["limits"]) == (True, {"calls": 1.0})
    raised = {"budget": "few", "subject": "default", "limits": {"calls": 5}}
    httpx.post(f"{server.url}/api/budgets/raise", json=raised, headers=ADMIN).raise_for_status()
    assert ask(server, MAIN).status_code == 200
    found = account(server)
    assert (found["forged"], found["limits"]) == (False, {"calls": 5})


def test_a_mac_is_of_one_account(server: AppServer, tmp_path: Path) -> None:
    """What was signed holds for that account with those limits alone."""
    raised = {"budget": "few", "subject": "default", "limits": {"calls": 2}}
    httpx.post(f"{server.url}/api/budgets/raise", json=raised, headers=ADMIN).raise_for_status()
    assert ask(server, MAIN).status_code == 200
    account(server)
    forge(tmp_path / "one.db", "limits = '{\"calls\": 50}'")
    assert not passes_within_a_second(server)
