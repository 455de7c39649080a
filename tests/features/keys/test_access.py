"""Who is let into the control plane, by key, by session, or openly."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from gateway.auth.access import Gate
from gateway.auth.authenticator import Authenticator
from gateway.auth.keys import key_digest
from gateway.config import Secret
from gateway.errors import Forbidden, GatewayError, Unauthorized
from gateway.features.keys.keyring import KeyRing
from gateway.features.keys.settings import KeySettings
from gateway.upstream.credentials import SESSION_COOKIE
from steering_gateway_testing import AppServer
from steering_gateway_testing.control_plane import client_of
from tests.api.conftest import Start

ADMIN, ACME = "the-admin-key", "acme-key"
EVERYWHERE = "192.0.2.1"


def a_gate(*, host: str = "127.0.0.1", admin: str | None = ADMIN, **keys: str) -> Gate:
    """A gate with an admin key and, by tenant, gateway keys."""
    secrets = {tenant: Secret(key) for tenant, key in keys.items()}
    settings = KeySettings(admin_key=Secret(admin) if admin else None, gateway_keys=secrets)
    return Gate(Authenticator(settings, host=host, keys=KeyRing()))


def a_request(method: str = "GET", **headers: str) -> dict[str, Any]:
    """An ASGI scope; underscores in header names are hyphens."""
    named = {"host": "127.0.0.1:8080", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return {
        "type": "http",
        "method": method,
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in named.items()],
    }


def with_session(gate: Gate, key: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    """A request of a browser that logged in."""
    return a_request(
        method, cookie=f"other=1; {SESSION_COOKIE}={gate.log_in(key, a_request())}", **headers
    )


def test_the_admin_key_sees_everything() -> None:
    """In any of the headers that keys are taken from."""
    gate = a_gate(acme=ACME)
    for headers in (
        {"x_gateway_key": ADMIN},
        {"authorization": f"Bearer {ADMIN}"},
        {"x_api_key": ADMIN},
    ):
        access = gate.admit(a_request(**headers))
        assert (access.tenant, access.how, access.operator) == (None, "key", True)


def test_a_gateway_key_sees_its_tenant_only() -> None:
    """It may ask for its own tenant by name, and for no other."""
    access = a_gate(acme=ACME).admit(a_request(x_gateway_key=ACME))
    assert access.tenant == "acme"
    assert access.scope(None) == access.scope("acme") == "acme"
    with pytest.raises(Forbidden):
        access.scope("globex")


@pytest.mark.parametrize("headers", [{}, {"x_gateway_key": "wrong"}, {"authorization": "Basic x"}])
def test_once_an_admin_key_is_set_one_is_asked_for(headers: dict[str, str]) -> None:
    """No key, a wrong one, or another scheme do not open the gate."""
    with pytest.raises(Unauthorized):
        a_gate().admit(a_request(**headers))


def test_without_an_admin_key_loopback_is_open() -> None:
    """Nobody else can reach it, so nothing is asked for; a provider's key does not matter."""
    gate = a_gate(admin=None)
    assert gate.admit(a_request()).how == "open"
    assert gate.admit(a_request(authorization="Bearer sk-of-some-provider")).how == "open"


def test_a_wrong_gateway_key_is_refused_where_keys_are_used() -> None:
    """A revoked key is not taken for none at all."""
    with pytest.raises(Unauthorized):
        a_gate(admin=None, acme=ACME).admit(a_request(x_gateway_key="revoked"))


def test_beyond_loopback_nothing_is_open() -> None:
    """Without an admin key there is no operator; a gateway key still sees its own."""
    with pytest.raises(Forbidden, match="admin_key"):
        a_gate(host=EVERYWHERE, admin=None).admit(a_request())
    gate = a_gate(host=EVERYWHERE, admin=None, acme=ACME)
    assert gate.admit(a_request(x_gateway_key=ACME)).tenant == "acme"
    with pytest.raises(Unauthorized):
        gate.admit(a_request())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "", "[::1", "127.0.0.1.x"])
def test_a_name_pointed_at_loopback_is_refused(host: str) -> None:
    """Open access is for those who ask for loopback by its own names."""
    with pytest.raises(Forbidden):
        a_gate(admin=None).admit(a_request(host=host))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8080", "LOCALHOST:8080"])
def test_loopback_has_several_names(host: str) -> None:
    """All of them are good."""
    assert a_gate(admin=None).admit(a_request(host=host)).operator


def test_a_session_has_the_access_of_its_key() -> None:
    """The admin's sees everything, a tenant's its own."""
    gate = a_gate(acme=ACME)
    assert gate.admit(with_session(gate, ADMIN)).operator
    access = gate.admit(with_session(gate, ACME))
    assert (access.tenant, access.how) == ("acme", "session")
    assert gate.log_in("wrong", a_request()) is None


@pytest.mark.parametrize("change", ["x", ".x", "", "é"])
def test_a_changed_session_is_no_session(change: str) -> None:
    """What is not signed as it was made opens nothing."""
    gate = a_gate()
    session = f"{gate.log_in(ADMIN, a_request())}{change}" if change else "."
    cookie = f"{SESSION_COOKIE}={session}"
    with pytest.raises(Unauthorized):
        gate.admit(a_request(cookie=cookie))


def test_a_session_ends_with_its_key() -> None:
    """Another admin key, or a key taken away, ends the sessions begun with the old one."""

    def settings(admin: str, **keys: str) -> KeySettings:
        secrets = {tenant: Secret(key) for tenant, key in keys.items()}
        return KeySettings(admin_key=Secret(admin), gateway_keys=secrets)

    def admits(cookie: str | None) -> bool:
        try:
            return gate.admit(a_request(cookie=f"{SESSION_COOKIE}={cookie}")).how == "session"
        except Unauthorized:
            return False

    auth = Authenticator(settings(ADMIN, acme=ACME, other="k"), host="127.0.0.1", keys=KeyRing())
    gate = Gate(auth)
    admin, acme = gate.log_in(ADMIN, a_request()), gate.log_in(ACME, a_request())
    for admin_key, keys, left in [
        (ADMIN, {"acme": ACME}, (True, True)),
        (ADMIN, {"globex": ACME}, (True, False)),
        (ADMIN, {"acme": "another"}, (True, False)),
        (ADMIN, {"acme": ACME}, (True, True)),
        ("another", {"acme": ACME}, (False, False)),
        (ADMIN, {"acme": ACME}, (False, False)),
    ]:
        auth.update(settings(admin_key, **keys))
        assert (admits(admin), admits(acme)) == left


def test_a_session_says_nothing_about_the_key() -> None:
    """No digest of a key, and no signature that a guessed key would reproduce."""
    gates = [a_gate(acme=ACME) for _ in range(2)]
    for key in (ADMIN, ACME):
        cookies = [gate.log_in(key, a_request()) or "" for gate in gates]
        signatures = {cookie.partition(".")[2] for cookie in cookies}
        assert len(signatures) == 2
        for cookie in cookies:
            assert key_digest(key).hex() not in _claims(cookie).decode()
    tags = {json.loads(_claims(gate.log_in(ACME, a_request())))["k"] for gate in gates}
    assert len(tags) == 2


def _claims(cookie: str | None) -> bytes:
    body = (cookie or "").partition(".")[0]
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


def test_a_session_ends_with_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """After twelve hours one logs in again."""
    gate = a_gate()
    monkeypatch.setattr("gateway.auth.sessions.SESSION_S", -1)
    with pytest.raises(Unauthorized):
        gate.admit(with_session(gate, ADMIN))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://127.0.0.1:8080"},
    ],
)
@pytest.mark.parametrize("admin", [ADMIN, None])
def test_other_sites_cannot_change_anything(headers: dict[str, str], admin: str | None) -> None:
    """Neither with the browser's session nor where no key is asked for."""
    gate = a_gate(admin=admin)
    request = (
        with_session(gate, admin, "POST", **headers) if admin else a_request("POST", **headers)
    )
    with pytest.raises(Forbidden, match="another site"):
        gate.admit(request)


@pytest.mark.parametrize(
    "headers", [{}, {"origin": "http://127.0.0.1:8080", "sec_fetch_site": "same-origin"}]
)
def test_our_own_pages_and_plain_clients_can(headers: dict[str, str]) -> None:
    """A browser names our own origin; other clients name none."""
    gate = a_gate()
    assert gate.admit(with_session(gate, ADMIN, "POST", **headers)).operator
    assert a_gate(admin=None).admit(a_request("POST", **headers)).operator


def test_a_key_needs_no_origin() -> None:
    """No browser sends it by itself."""
    request = a_request("POST", x_gateway_key=ADMIN, origin="https://app.example")
    assert a_gate().admit(request).operator


def test_refusals_have_the_usual_shape(start: Start) -> None:
    """401 and 403 are errors as everywhere in the gateway."""
    server = start(auth={"admin_key": ADMIN, "gateway_keys": {"acme": ACME}})
    with client_of(server) as client:
        answer = client.get("/api/runs")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    with client_of(server, ACME) as client:
        answer = client.get("/api/runs", params={"tenant": "globex"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_the_admin_key_is_nobodys_gateway_key(start: Start) -> None:
    """It opens the control plane, not the proxy, where gateway keys are asked for."""
    server = start(auth={"admin_key": ADMIN, "gateway_keys": {"acme": ACME}})
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with client_of(server, ADMIN) as client:
        assert client.get("/api/runs").status_code == 200
        assert client.post("/v1/chat/completions", json=body).status_code == 401


def _status(server: AppServer, path: str, **headers: str) -> int:
    return httpx.get(f"{server.url}{path}", headers=headers).status_code


def test_every_route_asks(start: Start) -> None:
    """No operation is left open, the document included."""
    from gateway.api.routes import operations

    server = start(auth={"admin_key": ADMIN})
    for operation in operations():
        path = operation.path.replace("{", "").replace("}", "")
        answer = httpx.request(operation.method, f"{server.url}{path}")
        assert answer.status_code == 401, operation.name
    assert _status(server, "/healthz") == 200


def test_errors_are_the_gateways_own() -> None:
    """The gate raises nothing but what the edge can answer."""
    for request in (a_request(cookie="\xff=;"), a_request(cookie=f"{SESSION_COOKIE}=a.b.c")):
        with pytest.raises(GatewayError):
            a_gate().admit(request)
