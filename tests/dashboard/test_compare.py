"""Two runs side by side, and what another policy would have decided on one."""

from __future__ import annotations

import html
import re

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.dashboard.compare import changed_settings
from gateway.errors import BadRequest, ConfigError
from steering_gateway_testing import ScriptedUpstream
from tests.api.conftest import Agent, Start, a_finished_run, client_of
from tests.api.conftest import start as start
from tests.dashboard.test_pages import ACME, ADMIN, page_of


def test_two_runs_stand_side_by_side(start: Start, upstream: ScriptedUpstream) -> None:
    """Their figures in two columns, the steps in pairs, and the step at which they part; the run's
    own page leads there."""
    server = start()
    with client_of(server) as client:
        first, second = (Agent(client, upstream, "Find it") for _ in range(2))
        for number in range(6):
            first.step()
            second.step(result="Error: no such file" if number < 3 else "found")
        upstream_reply = second.answer("Done.")
        assert upstream_reply
        a, b = first.run_id, second.run_id
        page = client.get("/dashboard/compare", params={"a": a, "b": b}).text
        own = client.get(f"/dashboard/runs/{a}").text
        costs = [client.get(f"/api/runs/{run}").json()["run"]["totals"] for run in (a, b)]
    assert f'<option value="{b}">' in own
    for name, key in (("Steps", "steps"), ("Calls", "calls")):
        row = re.search(rf">{name}</th><td>([\d,]+).*?</td><td>([\d,]+)", page)
        assert row is not None
        assert [int(value.rstrip(",")) for value in row.groups()] == [total[key] for total in costs]
    assert len(re.findall(r'class="num"><a href="/dashboard/runs/[^"]+step=\d+', page)) == 6
    assert "they part at step" in page or "both did the same" in page
    page_of(server, f"/dashboard/compare?a={a}", status=400)
    page_of(server, f"/dashboard/compare?a={a}&b=none", status=404)


def test_another_policy_is_tried_on_a_run(start: Start, upstream: ScriptedUpstream) -> None:
    """Offline: nothing is sent and nothing is recorded. The same policy decides the same."""
    server = start()
    run_id = a_finished_run(server, upstream)
    with client_of(server) as client:
        agent = Agent(client, upstream, "Find it")
        for _ in range(9):
            agent.step()
        before = len(upstream.requests)
        address = f"/dashboard/runs/{agent.run_id}/what-if"
        same = html.unescape(client.get(address, params={"change": "fsm: {}"}).text)
        assert "would have been decided the same" in same
        change = "model_routing: {NORMAL: small-model, SLOW: big-model}"
        other = html.unescape(client.get(address, params={"change": change}).text)
        assert "would have been decided differently" in other
        assert "small-model" in other
        seeds = client.get(address, params={"base": "seeds"}).text
        assert "The other policy" in seeds
        assert "monitor:loop" in seeds  # pieces of guidance by name, not as values of the program
        assert "source" not in seeds
        wrong = client.get(address, params={"change": "fsm: {slow: 1}"})
        assert (wrong.status_code, "fsm.slow" in wrong.text) == (400, True)
        assert len(upstream.requests) == before
        assert client.get("/api/runs", params={"count": "1"}).json()["total"] == 2
        assert client.get(f"/dashboard/runs/{run_id}/what-if").status_code == 200


def test_only_the_operator_tries_policies(start: Start, upstream: ScriptedUpstream) -> None:
    """A tenant compares its own runs, and tries none; without texts the page says why not."""
    auth = {"admin_key": ADMIN, "gateway_keys": {"acme": ACME}}
    server = start(auth=auth, storage={"store_content": False})
    run_id = a_finished_run(server, upstream, key=ACME)
    with client_of(server, ACME) as client:
        assert client.get(f"/dashboard/runs/{run_id}/what-if").status_code == 403
        pair = {"a": run_id, "b": run_id}
        assert client.get("/dashboard/compare", params=pair).status_code == 200
    with client_of(server, ADMIN) as client:
        page = client.get(f"/dashboard/runs/{run_id}/what-if", params={"base": "seeds"}).text
    assert "storage.store_content is false" in page
    answer = httpx.get(f"{server.url}/dashboard/runs/{run_id}/what-if")
    assert answer.status_code == 303


def test_a_tried_policy_reads_nothing_of_the_machine() -> None:
    """Neither files nor variables nor services: only the sections that decide."""
    settings = settings_from_dict({}, {})
    for change, error in (
        ("auth: {admin_key: x}", BadRequest),
        ("- fsm", BadRequest),
        ("fsm: [", BadRequest),
        ("fsm: {slow_threshold: high}", ConfigError),
        ("steering: {budget_action: wrap_up}", ConfigError),
    ):
        with pytest.raises(error):
            changed_settings(settings, "own", change)
    change = "{difficulty: {weights_file: /etc/passwd}, model_routing: {SLOW: '${HOME}'}}"
    changed = changed_settings(settings, "own", change)
    assert changed.difficulty.weights_file is None
    assert changed.model_routing == {"SLOW": "${HOME}"}
    assert changed_settings(settings, "own", "") == settings
    assert changed_settings(settings, "seeds", "").monitors.suite == "reference"
