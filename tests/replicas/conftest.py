"""An empty database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import empty_database


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as url:
        yield url
