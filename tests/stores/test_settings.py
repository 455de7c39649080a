"""Storage settings: every default is valid, and bad values name their field."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.storage import StorageSettings


def test_one_path_is_in_memory() -> None:
    """Only `:memory:` is in memory."""
    assert not StorageSettings().in_memory
    assert StorageSettings(path=":memory:").in_memory


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", " "),
        ("synchronous", "off"),
        ("retention_days", -1),
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
