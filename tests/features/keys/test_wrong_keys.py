"""Wrong keys are slowed down by the address they come from."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.auth.authenticator import WrongKeyLimit
from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.errors import Overloaded
from gateway.features.keys.keyring import make_key
from steering_gateway_testing import AppServer
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.store_conformance.keys import kept_keys
from tests.api.conftest import Start, with_pages

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ADMIN, SHORT, LONG = "admin-key", "acme-key", "gw-0123456789abcdefghijklmnopqrstuvwxyz"
PATHS = ["/v1/chat/completions", "/v1/embeddings", "/v1/models", "/api/runs", "/dashboard/login"]


def ask(server: AppServer, path: str, key: str) -> httpx.Response:
    with client_of(server, None if path == "/dashboard/login" else key) as client:
        if path == "/dashboard/login":
            return client.post(path, data={"key": key, "next": ""})
        if path in ("/v1/models", "/api/runs"):
            return client.get(path)
        return client.post(path, json=BODY)


@pytest.fixture
def server(start: Start) -> AppServer:
    """A gateway with keys that takes three wrong ones a minute."""
    keys = {"acme": SHORT, "globex": LONG}
    return start(auth={"admin_key": ADMIN, "gateway_keys": keys, "wrong_keys_per_minute": 3})


@pytest.mark.parametrize("path", PATHS)
@with_pages
def test_a_fourth_wrong_key_has_to_wait(server: AppServer, path: str) -> None:
    """On every route; also a right key, as long as it could have been found by trying."""
    answers = [ask(server, path, f"wrong-{number}") for number in range(4)]
    assert [answer.status_code == 429 for answer in answers] == [False, False, False, True]
    assert 1 <= int(answers[3].headers["retry-after"]) <= 60
    if not path.startswith("/dashboard"):
        assert answers[3].json()["error"]["code"] == "too_many_wrong_keys"
    for guessed in (SHORT, ADMIN):
        assert ask(server, "/api/runs", guessed).status_code == 429
        assert ask(server, "/dashboard/login", guessed).status_code == 429
    assert ask(server, "/v1/chat/completions", SHORT).status_code == 429
    # Behind a proxy all clients have one address: a long key still works.
    assert ask(server, "/v1/chat/completions", LONG).status_code == 200
    assert ask(server, "/api/runs", LONG).status_code == 200
    with client_of(server) as client:
        assert client.post("/v1/chat/completions", json=BODY).status_code == 401  # no key
        assert client.get("/healthz").status_code == 200


def test_right_keys_are_not_counted(server: AppServer) -> None:
    """However often they are sent, and a missing key neither."""
    for _ in range(5):
        assert ask(server, "/v1/chat/completions", SHORT).status_code == 200
        assert ask(server, "/api/runs", ADMIN).status_code == 200
        with client_of(server) as client:
            assert client.post("/v1/chat/completions", json=BODY).status_code == 401
    assert ask(server, "/api/runs", "wrong").status_code == 401


async def test_keys_of_the_store_always_work(start: Start, tmp_path: Path) -> None:
    """They are random and long, so a wrong key of another client does not shut them out."""
    made, path = make_key("acme"), str(tmp_path / "keys.db")
    stores = await open_stores(StorageSettings(path=path))
    await kept_keys(stores).add_key(made.record)
    await stores.close()
    server = start(storage={"path": path}, auth={"wrong_keys_per_minute": 1})
    statuses = [ask(server, "/v1/embeddings", key).status_code for key in ("a", "b", made.text)]
    assert statuses == [401, 429, 200]


def test_zero_is_no_limit(start: Start) -> None:
    """As before there was one."""
    server = start(auth={"gateway_keys": {"acme": SHORT}, "wrong_keys_per_minute": 0})
    assert {ask(server, "/v1/models", "wrong").status_code for _ in range(50)} == {401}


def refused(limit: WrongKeyLimit, address: str) -> str | None:
    """The seconds to wait; None when the address is not refused."""
    try:
        limit.refuse(address)
    except Overloaded as error:
        return dict(error.headers)["retry-after"]
    return None


def test_a_minute_later_it_starts_again() -> None:
    """Each address has a minute of its own, from its first wrong key."""
    clock = [1000.0]
    limit = WrongKeyLimit(2, lambda: clock[0])
    for _ in range(2):
        assert refused(limit, "a") is None
        limit.count("a")
        clock[0] += 10
    assert (refused(limit, "a"), refused(limit, "b")) == ("40", None)
    clock[0] += 40
    assert refused(limit, "a") is None
    limit.count("a")
    assert refused(limit, "a") is None


def test_the_table_is_bounded() -> None:
    """An attacker with many addresses fills no memory; the newest are remembered."""
    limit = WrongKeyLimit(1)
    for number in range(10_000):
        limit.count(f"address-{number}")
    assert len(limit._seen) == 4096
    assert refused(limit, "address-9999")
    assert refused(limit, "address-0") is None
