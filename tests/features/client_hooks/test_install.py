"""`gateway hooks install` and `remove`: the file of an agent before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.features.client_hooks.install import AGENTS

GROUP = '{"hooks": [{"type": "command", "command": "a"}]}'
OWN = f'{{"model": "opus",\n   "hooks": {{"Stop": [{GROUP}]}},\n "x": 1.0}}'
FORMS = [None, "{}", "{ }\n", '{\n  "a": "ä"\n}', '{\n\t"a": 1\n}\n', OWN]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, and a folder without a config file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GATEWAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def place(home: Path, agent: str, text: str | None) -> Path:
    """The file of an agent, with this text."""
    path = home / AGENTS[agent][1] / AGENTS[agent][2]
    path.parent.mkdir(exist_ok=True)
    if text is not None:
        path.write_text(text)
    return path


def hooks(*words: str) -> int:
    """The status of one command."""
    return main(["hooks", *words])


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("text", FORMS)
def test_the_file_is_as_it_was(home: Path, agent: str, text: str | None) -> None:
    """Byte for byte, also when the hooks were installed twice, the second time with a list."""
    path = place(home, agent, text)
    (home / "own.yaml").write_text("client_hooks: {ask: [make]}")
    assert hooks("install", agent, "--yes") == 0
    assert hooks("install", agent, "--config", "own.yaml", "--yes") == 0
    known = json.loads(path.read_text())
    ours = [g["hooks"][0]["command"] for groups in known["hooks"].values() for g in groups]
    assert sum("answer.py" in each for each in ours) == 2
    assert all(str(home / "own.yaml") in each for each in ours if "answer.py" in each)
    assert "a" in ours or text != OWN
    assert hooks("remove", agent, "--yes") == 0
    assert (path.read_text() if path.exists() else None) == text


def test_what_others_changed_stays(home: Path) -> None:
    """A key and a hook that came meanwhile; nothing else is different."""
    path = place(home, "claude-code", json.dumps({"a": 1}, indent=2))
    hooks("install", "--yes")
    known = json.loads(path.read_text())
    known["b"] = [2]
    known["hooks"]["PreToolUse"].append({"hooks": [{"type": "command", "command": "mine"}]})
    known["hooks"]["PreToolUse"][0]["hooks"].append({"type": "command", "command": "beside"})
    path.write_text(json.dumps(known, indent=2))
    assert hooks("remove", "--yes") == 0
    mine = [{"hooks": [{"type": "command", "command": name}]} for name in ("beside", "mine")]
    expected = {"a": 1, "hooks": {"PreToolUse": mine}, "b": [2]}
    assert path.read_text() == json.dumps(expected, indent=2)


def test_the_change_is_shown_and_asked(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal nothing is changed; nor is it after a no."""
    path = place(home, "claude-code", "{}")
    assert hooks("install") == 2
    assert path.read_text() == "{}"
    assert "+" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert hooks("install") == 1
    assert path.read_text() == "{}"
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert hooks("install") == 0
    assert path.read_text() != "{}"


@pytest.mark.parametrize("text", ['{"a": 1, // note\n}', "[]", '"a"', '{"hooks": 3}', "\x00"])
def test_a_file_that_is_no_plain_json_is_left_alone(home: Path, text: str) -> None:
    """It cannot be written again without loss."""
    path = place(home, "claude-code", text)
    assert hooks("install", "--yes") == 2
    assert hooks("remove", "--yes") in (0, 2)
    assert path.read_text() == text


def test_a_folder_in_place_of_the_file_is_told_in_words(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the number of the system's error."""
    path = place(home, "claude-code", None)
    path.mkdir()
    assert hooks("install", "--yes") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gateway: {path}: cannot be changed without loss: Is a directory")


def test_a_refused_config_is_refused(home: Path) -> None:
    """Before anything is changed."""
    (home / "own.yaml").write_text("client_hooks: {share: much}")
    path = place(home, "claude-code", None)
    assert hooks("install", "--config", "own.yaml", "--yes") == 2
    assert not path.exists()


def test_the_mode_and_a_link_stay(home: Path) -> None:
    """Dotfiles are often links."""
    real = home / "dots.json"
    real.write_text("{}")
    real.chmod(0o640)
    path = place(home, "claude-code", None)
    path.symlink_to(real)
    hooks("install", "--yes")
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert "answer.py" in real.read_text()


def test_without_hooks_there_is_nothing_to_remove(home: Path) -> None:
    """Neither with a file nor without one."""
    assert hooks("remove", "--yes") == 0
    path = place(home, "claude-code", OWN)
    assert hooks("remove", "--yes") == 0
    assert path.read_text() == OWN
