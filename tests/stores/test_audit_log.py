"""The list of changes, over every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.backends import Stores
from gateway.config import settings_from_dict
from gateway.config.reload import differences
from gateway.stores.protocols import StoreUnavailable
from gateway.stores.sql import audit_log as module
from gateway.stores.sql.audit_log import ChangeStore


def kept(stores: Stores) -> ChangeStore:
    """The list of these stores."""
    assert stores.changes is not None
    return stores.changes


async def test_acts_are_found_by_each_filter(stores: Stores) -> None:
    """Newest first; filters join, and a page continues the one before."""
    log = kept(stores)
    for number in range(6):
        said = {"reason": f"Reason {number}", "limits": {"usd": number}}
        await log.note("budget", "raise", f"c-{number % 2}", said, author=f"p{number % 3}")
    await log.note("run", "stop", "c-9.0", {}, author="p0")
    everything = await log.find()
    assert [each.kind for each in everything] == ["run"] + ["budget"] * 6
    assert [each.reason for each in await log.find(subjects=["c-1"], author="p0")] == ["Reason 3"]
    assert [each.subject for each in await log.find(kind="run")] == ["c-9.0"]
    assert [each.reason for each in await log.find(text="reason 4")] == ["Reason 4"]
    assert [each.reason for each in await log.find(text='"usd":5')] == ["Reason 5"]
    page = await log.find(limit=3)
    assert await log.find(limit=9, cursor=page[-1].id) == everything[3:]
    middle = everything[3].at
    assert await log.find(since=middle) + await log.find(until=middle) == everything


async def test_an_act_waits_for_a_store_that_is_away(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written when the store is back, once, also when its first write was not answered."""
    log, real = kept(stores), kept(stores)._write
    failures, written = iter([True, True]), asyncio.Event()

    async def failing(change: Any) -> None:
        if next(failures, False):
            await real(change)
            raise StoreUnavailable("no connection")
        await real(change)
        written.set()

    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    monkeypatch.setattr(log, "_write", failing)
    await log.note("run", "stop", "c-1.0", {"reason": "it loops"}, author="ann")
    await written.wait()
    assert [each.reason for each in await log.find()] == ["it loops"]


async def test_secrets_are_masked(stores: Stores) -> None:
    """By their form, and by the name next to them, at any depth."""
    log, key = kept(stores), "sk-ant-api03-" + "Ab3" * 31
    said = {"reason": f"use {key}", "deep": [{"password": "hunter2hunter2", "plain": "yes"}]}
    await log.note("key", "create", "k", said)
    (found,) = await log.find()
    assert key not in found.reason + found.body
    assert "hunter2hunter2" not in found.body
    assert '"plain":"yes"' in found.body


async def test_a_config_is_noted_once(stores: Stores) -> None:
    """Gateways that load the same change append one act; keys are masked."""
    old = settings_from_dict({"auth": {"admin_key": "first-key"}}, {})
    more = {"auth": {"admin_key": "other-key"}, "steering": {"mode": "shadow"}}
    new = settings_from_dict(more, {})
    changed = differences(old, new)
    assert changed["steering.mode"] == "'on' to 'shadow'"
    assert set(changed) == {"auth.admin_key", "steering.mode"}
    assert "key" not in changed["auth.admin_key"]
    log = kept(stores)
    await asyncio.gather(*(log.note_config(changed) for _ in range(5)))
    await log.note_config(differences(new, old))
    assert [each.author for each in await log.find(kind="config")] == ["gateway"] * 2
