"""One switch for all gateways on a store: guidance and routing off, and on again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.patience import until

Start = Callable[..., AppServer]
ADMIN = {"x-gateway-key": "a" * 40}
BODY = (
    b'{"model": "gpt-4o",  "messages": [{"role": "user", "content": "mend it"}], "tools": '
    b'[{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]}'
)


@pytest.fixture
def pair(gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path) -> list[AppServer]:
    """Two gateways on one file, with a budget of three calls a client."""
    upstream.default = Reply("done")
    settings: dict[str, Any] = {
        "storage": {"path": str(tmp_path / "both.db")},
        "auth": {"admin_key": "a" * 40},
        "budgets": [{"name": "few", "scope": "client", "limits": {"calls": 3}}],
    }
    return [gateway_server(settings), gateway_server(settings)]


def test_steering_is_switched_off_and_on(
    pair: list[AppServer],
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the API and by the command, without a restart, at both; bytes pass untouched, limits hold,
    pages say so, and both acts are in the audit log."""

    def steered(server: AppServer, client: str, mode: str = "on") -> bool:
        headers = {"user-agent": client, "content-type": "application/json"}
        headers |= {"x-gateway-mode": mode}
        url = f"{server.base_url}/chat/completions"
        answer = httpx.post(url, content=BODY, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        assert (answer.headers["x-gateway-mode"] == "on") is (upstream.last.body != BODY)
        return bool(answer.headers["x-gateway-mode"] == "on")

    assert [steered(server, "before") for server in pair] == [True, True]
    assert httpx.post(f"{pair[0].url}/api/steering/off").status_code == 401
    said = {"reason": "it misleads", "author": "ann"}
    off = httpx.post(f"{pair[0].url}/api/steering/off", json=said, headers=ADMIN)
    assert off.json()["action"] == "off"
    assert not steered(pair[0], "off")
    numbers = iter(range(1000))
    until(lambda: not steered(pair[1], f"other-{next(numbers)}"))
    headers = {"user-agent": "off", "content-type": "application/json"}
    url = f"{pair[0].base_url}/chat/completions"
    codes = [httpx.post(url, content=BODY, headers=headers).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    for page in ("/dashboard", "/dashboard/health"):
        shown = httpx.get(f"{pair[1].url}{page}", headers=ADMIN).text
        assert "Guidance and routing are off since" in shown
        assert "(ann)" in shown
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(tmp_path / "both.db"))
    assert main(["steering", "on"]) == 2
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", "a" * 40)
    assert main(["steering", "on", "--author", "bob"]) == 0
    capsys.readouterr()
    assert main(["steering"]) == 0
    assert capsys.readouterr().out.startswith("steering is on")
    for server in pair:
        until(lambda server=server: steered(server, f"again-{next(numbers)}"))  # type: ignore[misc]
    acts = httpx.get(f"{pair[0].url}/api/audit", headers=ADMIN).json()["acts"]
    done = [(act["act"], act["author"]) for act in acts if act["kind"] == "steering"]
    assert done == [("on", "bob"), ("off", "ann")]


@pytest.mark.parametrize("name", ["gateway", "Gateway", "steering", "operator"])
def test_reserved_authors_are_refused(pair: list[AppServer], name: str) -> None:
    """In the header, in a body and at the login."""
    url = f"{pair[0].url}/api/steering/off"
    assert httpx.post(url, headers=ADMIN | {"x-gateway-author": name}).status_code == 400
    assert httpx.post(url, headers=ADMIN, json={"author": name}).status_code == 400
    login = f"{pair[0].url}/dashboard/login"
    form = {"key": "a" * 40, "name": name}
    assert httpx.post(login, data=form, headers={"origin": pair[0].url}).status_code == 400
    assert httpx.get(f"{pair[0].url}/api/held", headers=ADMIN).json()["held"] == []
