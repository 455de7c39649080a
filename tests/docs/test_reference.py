"""The reference pages are those that the code gives now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_reference_pages_are_current() -> None:
    """Configuration, commands and API: `make reference` makes them anew."""
    checked = subprocess.run(
        [sys.executable, "-m", "scripts.reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
