"""Where a wrapped command's requests go, and where its runs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import OPENAI_API_BASE
from gateway.features.wrap.own_gateway import ANTHROPIC, wrap_settings
from gateway.features.wrap.wrapped import COMMON, with_upstreams

LOCAL = "http://127.0.0.1:9000/v1"
FAR = "https://models.example.com/v1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and an empty home."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return work


@pytest.mark.parametrize(
    ("env", "chat", "messages"),
    [
        ({}, OPENAI_API_BASE, None),
        ({"OPENAI_BASE_URL": LOCAL}, LOCAL, None),
        ({"OPENAI_API_BASE": LOCAL}, LOCAL, None),
        ({"OPENAI_BASE_URL": FAR}, FAR, f"{ANTHROPIC}/v1"),
        (
            {"ANTHROPIC_BASE_URL": "https://a.example.com"},
            OPENAI_API_BASE,
            "https://a.example.com/v1",
        ),
        ({"OPENAI_BASE_URL": FAR, "ANTHROPIC_API_BASE": f"{FAR}/"}, FAR, FAR),
    ],
)
def test_requests_go_where_they_would_have_gone(
    env: dict[str, str], chat: str, messages: str | None
) -> None:
    """A provider's key never reaches another provider because a gateway stands between."""
    upstream = wrap_settings(None, env, None).default_upstream
    assert (upstream.api_base, upstream.messages_api_base) == (chat, messages)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        *(("agent", each) for each in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")),
        *(("agent", each) for each in ("OPENAI_BASE_URL", "OPENAI_API_BASE")),
        ("claude", "ANTHROPIC_BEDROCK_BASE_URL"),
        ("gemini", "GOOGLE_GEMINI_BASE_URL"),
        ("kimi", "KIMI_BASE_URL"),
    ],
)
def test_an_address_that_is_none_is_told_by_its_variable(
    program: str,
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the one that the user has set, and no other; with what is wrong."""
    for each in COMMON:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "host:1")
    (folder / program).write_text("#!/bin/sh\n")
    (folder / program).chmod(0o700)
    assert main(["wrap", "--", f"./{program}"]) == 2
    assert capsys.readouterr().err == f"gateway: {name}: 'host:1' is not an http(s) URL\n"


def test_a_switch_is_no_address() -> None:
    """Claude Code's switches have names that are like those of its addresses."""
    skipped = {"CLAUDE_CODE_SKIP_BEDROCK_AUTH": "1"}
    settings = wrap_settings(None, with_upstreams(["claude"], skipped), None)
    assert settings.default_upstream.bedrock_api_base is None


def test_what_the_config_says_holds(folder: Path, tmp_path: Path) -> None:
    """Its upstreams, its mode and its database; a port of its own all the same."""
    (folder / "config.yaml").write_text(
        "default_upstream: {api_base: 'https://models.example.com/v1', "
        "messages_api_base: 'https://m.example.com/v1'}\n"
        "steering: {mode: shadow}\nstorage: {path: mine.db}\nserver: {port: 9999, workers: 4}\n"
    )
    settings = wrap_settings(None, {"ANTHROPIC_BASE_URL": "https://other.example.com"}, None)
    assert settings.default_upstream.messages_api_base == "https://m.example.com/v1"
    assert (settings.steering.mode, settings.storage.path) == ("shadow", "mine.db")
    assert (settings.server.host, settings.server.port, settings.server.workers) == (
        "127.0.0.1",
        0,
        1,
    )
    assert wrap_settings(None, {}, "on").steering.mode == "on"
    (folder / "config.yaml").unlink()
    state = tmp_path / ".local" / "state" / "steering-gateway" / "gateway.db"
    assert wrap_settings(None, {}, None).storage.path == str(state)
    (folder / "gateway.db").touch()
    assert wrap_settings(None, {}, None).storage.path == "gateway.db"


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--stop-after", "-5m", "--stop-after: 30m, 2h, 90s or 50 calls, not '-5m'"),
        ("--stop-after", "9" * 400, "--stop-after: 30m, 2h, 90s or 50 calls, not '999"),
        ("--budget", "nan", "--budget: dollars such as 2.00, not 'nan'"),
        ("--sub-agents", "-1", "--sub-agents: a number of calls from 1, not -1"),
    ],
)
def test_a_limit_below_zero_or_without_end_is_named(
    option: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that begins like an option."""
    assert main(["wrap", option, value, "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gateway: wrap: {says}")
