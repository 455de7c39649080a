"""Closing the changelog for a version."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path

import pytest

from gateway import __version__
from scripts import publish

ROOT = Path(__file__).parents[2]
release = runpy.run_path(str(ROOT / "scripts" / "release.py"))
closed = release["closed"]
LINES_OF_A_VERSION = 40

BEFORE = """# Changelog

## [Unreleased]

Moved.

### Added

- new

### Fixed

- fault

## [0.1.0] - 2026-01-01

### Added

- old

## [0.0.9] - 2025-01-01

- first
"""


def test_what_is_unreleased_joins_its_version() -> None:
    """By kind of change, new before old; other versions stay; Unreleased is empty after it."""
    after = closed(BEFORE, "0.1.0", "2026-11-22")
    assert after == (
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-22\n\nMoved.\n\n"
        "### Added\n\n- new\n- old\n\n### Fixed\n\n- fault\n\n"
        "## [0.0.9] - 2025-01-01\n\n- first\n"
    )
    assert closed(after, "0.1.0", "2026-11-22") == after


def test_a_new_version_gets_a_section_of_its_own() -> None:
    """And an unknown kind of change is refused by name."""
    after = closed(BEFORE, "0.2.0", "2026-11-22")
    assert after.index("## [0.2.0] - 2026-11-22") < after.index("## [0.1.0] - 2026-01-01")
    with pytest.raises(ValueError, match="Broken"):
        closed(BEFORE.replace("### Fixed", "### Broken"), "0.2.0", "2026-11-22")
    with pytest.raises(ValueError, match="no section"):
        closed(BEFORE.replace("Unreleased", "Next"), "0.2.0", "2026-11-22")


def test_an_entry_is_one_line() -> None:
    """One that goes on in the next line is refused, and quoted."""
    with pytest.raises(ValueError, match=r"one line.*and more"):
        closed(BEFORE.replace("- new", "- new\n  and more"), "0.1.0", "2026-11-22")


def test_our_own_changelog_is_one_page() -> None:
    """It can be closed, and nobody has to read more than a page about a version, or about what came
    since: who closes it makes one page of both."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert closed(text, __version__, "2026-11-30")
    for section in text.split("\n## ")[1:]:
        assert len(section.splitlines()) <= LINES_OF_A_VERSION, section.splitlines()[0]


@pytest.mark.parametrize("words", [[], [""], ["2026-13-01"], ["today"]])
def test_a_date_is_asked_for(words: list[str]) -> None:
    """One that the calendar has."""
    with pytest.raises(SystemExit, match="which date"):
        release["main"](words)


def test_only_a_closed_and_committed_version_is_built() -> None:
    """Unreleased entries and changes of the checkout are refused, with what to do."""
    assert "make release DATE=" in publish.unready(BEFORE, "")
    after = closed(BEFORE, "0.1.0", "2026-11-22")
    assert " M a.py" in publish.unready(after, " M a.py\n")
    assert publish.unready(after, "") == ""


def test_the_sbom_says_of_which_version_it_is() -> None:
    """Who reads it compares it with advisories; nothing else of it is changed."""
    made = json.loads(publish.named('{"metadata": {"component": {"name": "a"}}, "components": []}'))
    about = {"name": "a", "version": __version__}
    assert made == {"metadata": {"component": about}, "components": []}


def test_the_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    """`sha256sum --check` accepts them, and refuses a file that was changed."""
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.json").write_bytes(b"{}")
    (tmp_path / "SHA256SUMS").write_text(publish.checksums(tmp_path))
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path).returncode == 0
    assert "SHA256SUMS" not in publish.checksums(tmp_path)
    (tmp_path / "a.whl").write_bytes(b"another")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1
