"""Entry points of other packages: looked for on the whole path, read only where one may be."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core import plugins

GROUP = "steering_gateway.scorers"
OURS = f"[{GROUP}]\nshort = short:Short\n"
OTHERS = "[console_scripts]\nshort = short:main\n"


@pytest.fixture(autouse=True)
def unread() -> Iterator[None]:
    """Each test, and what comes after it, looks for itself."""
    plugins._installed.cache_clear()
    yield
    plugins._installed.cache_clear()


def install(folder: Path, name: str, text: str) -> None:
    """Metadata of a package with these entry points."""
    (folder / name).mkdir(parents=True)
    (folder / name / "METADATA").write_text("Name: short\nVersion: 1\n")
    (folder / name / "entry_points.txt").write_text(text)


@pytest.mark.parametrize("name", ["short-1.dist-info", "short-1.egg-info", "Short-1.Dist-Info"])
def test_a_package_in_a_folder_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among others, in any of the forms that installers leave."""
    install(tmp_path, "other-1.dist-info", OTHERS)
    install(tmp_path, name, OURS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [each.value for each in plugins.plugins(GROUP, ())] == ["short:Short"]


def test_a_package_in_an_archive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `importlib.metadata` finds it there."""
    with zipfile.ZipFile(tmp_path / "short.zip", "w") as archive:
        archive.writestr("short-1.dist-info/METADATA", "Name: short\nVersion: 1\n")
        archive.writestr("short-1.dist-info/entry_points.txt", OURS)
    monkeypatch.syspath_prepend(str(tmp_path / "short.zip"))
    assert [each.value for each in plugins.plugins(GROUP, ())] == ["short:Short"]


def test_without_one_no_metadata_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes longer than a short command's own work; what cannot be read is no error."""
    install(tmp_path, "other-1.dist-info", OTHERS)
    (tmp_path / "odd-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "gone"), "", *sys.path])
    monkeypatch.delitem(sys.modules, "importlib.metadata", raising=False)
    assert plugins.plugins(GROUP, ()) == []
    assert "importlib.metadata" not in sys.modules
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._installed.cache_clear()
    assert plugins.plugins(GROUP, ()) == []
