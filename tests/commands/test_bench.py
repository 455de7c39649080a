"""`gateway bench` runs the benchmark of the source tree."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from gateway.cli import main


def test_arguments_are_the_benchmarks_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments after the command are passed to the benchmark."""
    importlib.import_module("bench.__main__")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    assert "--quick" in capsys.readouterr().out


def test_without_the_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed package says where the benchmark is."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bench" else found(name)
    )
    assert main(["bench"]) == 2
    assert "make bench" in capsys.readouterr().err


def test_other_commands_take_only_what_they_know(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt option is refused."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--prot", "1"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --prot 1" in capsys.readouterr().err
