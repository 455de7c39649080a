"""What `gateway serve` says at a terminal, and variables that set nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands.serve import facts
from gateway.config import misspelt_variables, settings_from_dict
from gateway.values import FieldDict


def told_by(raw: FieldDict) -> dict[str, str]:
    """The facts about a config by their names."""
    lines = facts(settings_from_dict(raw), "http://h:1").splitlines()
    return {line[2:13].strip(): line[14:] for line in lines if line}


def test_the_start_says_where_what_and_how_to_only_watch() -> None:
    """Both base URLs, dashboard, database, mode, routing; each line fits 80 columns."""
    told = told_by({"model_routing": {"SLOW": "big"}})
    assert told["agents"] == "OPENAI_BASE_URL=http://h:1/v1"
    assert told["dashboard"] == "http://h:1/dashboard"
    assert told["database"] == str(Path("gateway.db").absolute())
    assert told["mode"].startswith("on: ")
    assert told["routing"] == "SLOW big"
    assert "shadow" in told["only watch"]
    for mode in ("on", "shadow", "off"):
        lines = told_by({"steering": {"mode": mode}})
        assert all(len(text) <= 66 for name, text in lines.items() if name != "database")


def test_a_variable_with_one_underscore_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the right name; not what is right, unknown, or made by Kubernetes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_SERVER_PORT", "9000")
    assert main(["check-config", "--json"]) == 0
    [warning] = json.loads(capsys.readouterr().out)["warnings"]
    assert warning.startswith("GATEWAY_SERVER_PORT: ")
    assert warning.endswith(": GATEWAY_SERVER__PORT")
    right = {"GATEWAY_STEERING__MODE": "on", "GATEWAY_CONFIG": "x", "GATEWAY_OTHER": "y"}
    assert misspelt_variables(right | {"GATEWAY_SERVER_PORT": "tcp://10.0.0.1:80"}) == []
    assert misspelt_variables({"GATEWAY_FSM_FAST_THRESHOLD": "0.1"}) == [
        ("GATEWAY_FSM_FAST_THRESHOLD", "GATEWAY_FSM__FAST_THRESHOLD")
    ]


def test_a_wrong_option_is_told_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And not by the variable that would set the same; what variables set is told by theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_SERVER__HOST", "")
    assert main(["serve", "--port", "99999"]) == 2
    told = capsys.readouterr().err
    assert "server.port: must be 0 to 65535, got 99999 (set by --port)" in told
    assert "(set by GATEWAY_SERVER__HOST)" in told
