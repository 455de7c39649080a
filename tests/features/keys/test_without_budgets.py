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
