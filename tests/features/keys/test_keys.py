"""Gateway keys kept in the store: made, used, revoked."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.auth.keys import key_digest
from gateway.backends import Stores
from gateway.cli import main
from gateway.features.keys.keyring import KeyRing, make_key
from gateway.stores.protocols import StoreUnavailable
from steering_gateway_testing import AppServer
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.patience import until
from tests.api.conftest import Start

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def chat_status(server: AppServer, key: str | None) -> int:
    with client_of(server, key) as client:
        return client.post("/v1/chat/completions", json=BODY).status_code


class Shell:
    """The command line, on the file of a running gateway."""

    def __init__(
        self, path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
        self._capsys = capsys

    def __call__(self, *words: str) -> list[dict[str, Any]]:
        self._capsys.readouterr()
        assert main(["keys", *words, "--json"]) == 0
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "keys.db")


@pytest.fixture
def shell(path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(path, monkeypatch, capsys)


def test_a_key_works_until_it_is_revoked(start: Start, path: str, shell: Shell) -> None:
    """A running gateway takes a new key, and refuses a revoked one, within seconds."""
    server = start(storage={"path": path})
    assert chat_status(server, None) == 200
    (made,) = shell("create", "acme", "--name", "laptop")
    until(lambda: chat_status(server, None) == 401)
    assert chat_status(server, made["key"]) == 200
    with client_of(server, made["key"]) as client:
        (run,) = client.get("/api/runs").json()["runs"]
        assert run["tenant"] == "acme"
    assert shell("revoke", made["id"]) == [{"revoked": made["id"]}]
    until(lambda: chat_status(server, made["key"]) == 401)
    # The last key's end does not open the gateway to everybody.
    assert chat_status(server, None) == 401


def test_keys_are_listed_without_themselves(shell: Shell, path: str) -> None:
    """Neither the list nor the file holds a key."""
    made = [shell("create", tenant)[0] for tenant in ("acme", "globex")]
    listed = shell("list")
    assert [key["id"] for key in listed] == [key["id"] for key in made]
    assert [key["tenant"] for key in shell("list", "--tenant", "globex")] == ["globex"]
    kept = b"".join(file.read_bytes() for file in Path(path).parent.glob("keys.db*"))
    for key in made:
        assert key["key"] not in json.dumps(listed)
        assert key["key"].encode() not in kept
        assert key["key"].startswith(key["hint"])


def test_a_key_is_shown_once(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --json the key is printed on a separate line, to be copied."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
    assert main(["keys", "create", "acme"]) == 0
    printed = capsys.readouterr()
    key, note = printed.out.splitlines()
    assert key.startswith("gw-")
    assert "acme" in note
    assert "from now on every request needs one" in printed.err
    assert main(["keys", "create", "globex"]) == 0
    assert not capsys.readouterr().err  # no longer news
    assert main(["keys", "list"]) == 0
    assert "valid" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("revoke", "key-none"), ("create", ""), ("create", "a\x1b[31m")])
def test_what_cannot_be_done_is_said(
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """An unknown key, and a tenant without a name."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
    assert main(["keys", *words]) == 2
    assert capsys.readouterr().err.startswith("gateway: ")


def test_a_reset_leads_back(
    start: Start, path: str, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    """A running gateway that required a key answers without one again; keys do not work twice."""
    server = start(storage={"path": path})
    made = [shell("create", tenant)[0] for tenant in ("acme", "globex")]
    shell("revoke", made[1]["id"])
    until(lambda: chat_status(server, None) == 401)
    assert main(["keys", "reset"]) == 2  # pytest gives no terminal
    assert "--yes" in capsys.readouterr().err
    assert chat_status(server, None) == 401
    assert shell("reset", "--yes") == [{"deleted": 1}]
    until(lambda: chat_status(server, None) == 200)
    assert shell("list") == []
    shell("create", "acme")
    until(lambda: chat_status(server, made[0]["key"]) == 401)


@pytest.mark.parametrize(("typed", "left"), [("yes\n", 0), ("y\n", 1), ("", 1)])
def test_a_reset_asks_at_a_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, left: int
) -> None:
    """Only the whole word confirms."""
    shell("create", "acme")
    outer, inner = pty.openpty()
    os.write(outer, typed.encode() or b"\x04")  # nothing is typed: the end of the file
    with open(inner) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(["keys", "reset"]) == (0 if left == 0 else 2)
    os.close(outer)
    assert len(shell("list")) == left


def test_a_reset_names_keys_that_the_config_has(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those stay, so a first key changes nothing and a reset opens nothing."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
    monkeypatch.setenv("GATEWAY_AUTH__GATEWAY_KEYS", '{"acme": "a-key-of-the-config"}')
    assert main(["keys", "create", "globex"]) == 0
    assert not capsys.readouterr().err
    assert main(["keys", "list"]) == 0
    assert "auth.gateway_keys" in capsys.readouterr().err
    assert main(["keys", "reset", "--yes"]) == 0
    assert "auth.gateway_keys" in capsys.readouterr().err


def test_keys_are_long_and_each_its_own() -> None:
    """256 bits of chance; the record holds the digest."""
    made = [make_key("acme") for _ in range(50)]
    assert len({key.text for key in made}) == 50
    assert all(len(key.text) > 40 for key in made)
    assert all(key.record.digest == key_digest(key.text) for key in made)
    assert "digest" not in repr(made[0].record)


async def test_the_newest_reading_of_the_keys_counts() -> None:
    """A slow reading that began before a key was revoked does not make it valid again."""
    key, slow = make_key("acme"), asyncio.Event()

    class Store:
        readings = 0

        async def list_keys(self) -> list[Any]:
            self.readings += 1
            if self.readings == 1:
                await slow.wait()
                return [key.record]
            return [replace(key.record, revoked_at=1.0)]

    store, ring = Store(), KeyRing()
    stores = cast(Stores, SimpleNamespace(of=lambda _: store))
    earlier = asyncio.ensure_future(ring.refresh(stores))
    await asyncio.sleep(0)
    await ring.refresh(stores)
    slow.set()
    await earlier
    assert ring.find(key.record.digest) is None


async def test_a_store_that_fails_leaves_the_keys_known() -> None:
    """Keys go on to be taken while the store is away."""
    key = make_key("acme")

    class Store:
        broken = False

        async def list_keys(self) -> list[Any]:
            if self.broken:
                raise StoreUnavailable("away")
            return [key.record]

    store, ring = Store(), KeyRing()
    stores = cast(Stores, SimpleNamespace(of=lambda _: store))
    await ring.refresh(stores)
    store.broken = True
    with pytest.raises(StoreUnavailable):
        await ring.refresh(stores)
    found = ring.find(key.record.digest)
    assert found is not None
    assert found.tenant == "acme"
    assert ring.required
