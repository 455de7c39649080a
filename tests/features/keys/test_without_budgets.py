"""Keys of a gateway from which another feature was deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.features.keys.keyring import make_key, state_of
from gateway.features.keys.records import KeyTerms
from gateway.stores.sql import migrations
from steering_gateway_testing.store_conformance.keys import kept_keys


async def test_a_key_with_limits_is_refused_where_nothing_counts_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can neither be made nor used: without budgets its limits would be ignored."""
    stores = await open_stores(StorageSettings(path=str(tmp_path / "keys.db")))
    limited = make_key("acme", "ci", KeyTerms(usd=2.0)).record
    free = replace(limited, id="key-free", digest=b"f" * 32, terms=KeyTerms(owner="ada"))
    for key in (limited, free):
        await kept_keys(stores).add_key(key)
    monkeypatch.setattr("gateway.features.keys.records.features", dict)
    with pytest.raises(ValueError, match="usd: no calls are counted"):
        KeyTerms(usd=2.0)
    listed = await kept_keys(stores).list_keys()
    assert [state_of(key) for key in listed] == ["expired", "valid"]
    await stores.close()


def test_a_database_with_tables_of_a_deleted_feature_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the names of its changes, which a database that several versions share is refused for."""
    assert not migrations.of_deleted("keys_009_of_a_later_version")
    monkeypatch.setattr(migrations, "features", dict)
    assert migrations.of_deleted("keys_001_keys")
    assert not migrations.of_deleted("core_001_conversations_and_runs")


async def test_a_key_with_terms_of_a_later_version_gives_no_right_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    """A limit that is not known is not left out; the key can be revoked, and not be changed."""
    stores = await open_stores(StorageSettings(path=str(tmp_path / "keys.db")))
    store = kept_keys(stores)
    made = make_key("acme", "ci").record
    await store.add_key(made)
    written = '{"models":["a"],"ips":["10.0.0.1"]}'
    await store._engine.write("UPDATE keys SET terms = :terms", terms=written)
    (key,) = await store.list_keys()
    assert (key.terms.models, state_of(key)) == ((), "expired")
    with pytest.raises(ValueError, match="revoke it"):
        await store.change_key(made.id, {"expires_at": None})
    assert await store._engine.fetch("SELECT terms FROM keys") == [(written,)]
    await store.delete_keys()
    await store._engine.transact(store._restore)  # as after the loss of the database
    assert await store._engine.fetch("SELECT terms FROM keys") == [(written,)]
    assert await store.revoke_key(made.id, 1.0)
    await stores.close()
