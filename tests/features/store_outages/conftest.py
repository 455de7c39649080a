"""Disks that can be filled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from steering_gateway_testing.outages import small_folder


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A folder on a small file system. Skips the test where nothing can be mounted."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(small_folder())
        except OSError as error:
            pytest.skip(str(error))
        yield folder
