"""Storage settings: every default is valid, and bad values name their field."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.settings import StorageSettings


def test_defaults() -> None:
    """Runs are kept in `gateway.db`, with their texts, for a month."""
    settings = StorageSettings()
    assert (settings.path, settings.synchronous, settings.store_content) == (
        "gateway.db",
        "normal",
        True,
    )
    assert settings.retention_days == 30
    assert not settings.in_memory
    assert StorageSettings(path=":memory:").in_memory


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", " "),
        ("synchronous", "off"),
        ("retention_days", -1),
        ("max_size_mb", float("inf")),
        ("max_size_mb", float("nan")),
        ("retention_interval_s", 0),
        ("busy_timeout_ms", -1),
        ("queue_limit", 0),
        ("reader_threads", 0),
        ("reader_threads", 65),
        ("cache_mb", 0),
    ],
)
def test_bad_values_are_refused(field: str, value: Any) -> None:
    """The message starts with the field and says what is wrong with it."""
    with pytest.raises(ValueError, match=f"^{field}: must"):
        StorageSettings(**{field: value})
