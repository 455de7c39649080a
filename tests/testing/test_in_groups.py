"""The suite in groups: what happens in any process is in the one summary at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run(folder: Path, rooms: dict[str, str]) -> tuple[int, str]:
    """The status and the output of a suite with one module of tests in each room."""
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    for room, text in rooms.items():
        (folder / "tests" / room).mkdir(parents=True)
        (folder / "tests" / room / f"test_{Path(room).name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.in_groups", "--in-groups=2"]
    ended = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=folder,
        # Plugins of pytest take longer to load than these tests to run.
        env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return ended.returncode, ended.stdout


def test_all_rooms_are_counted_together(tmp_path: Path) -> None:
    """Named rooms, features and the rest end in one line."""
    status, printed = run(
        tmp_path,
        {
            "live": "def test_a(): pass",
            "features/keys": "def test_b(): pass\ndef test_c(): pass",
            "unnamed": "import pytest\n@pytest.mark.skip\ndef test_d(): pass",
        },
    )
    assert status == 0
    assert "3 passed, 1 skipped" in printed.splitlines()[-1]


def test_a_failure_of_any_process_fails_the_whole(tmp_path: Path) -> None:
    """Whether a test fails, a module is not there, or a process ends without a word."""
    status, printed = run(
        tmp_path,
        {
            "live": "def test_a(): assert 1 == 2",
            "relay": "import absent",
            "wire": "import os\ndef test_b(): pass\ndef test_c(): os._exit(0)",
            "unnamed": "def test_d(): pass",
        },
    )
    assert status == 1
    assert "assert 1 == 2" in printed
    assert "No module named 'absent'" in printed
    assert "1 failed, 2 passed, 2 errors" in printed.splitlines()[-1]
