"""What each client gets to read: variables and options, as a table says."""

from __future__ import annotations

import json

import pytest

from gateway.wrap.command import CLIENTS, client_of, prepared

ROOT = "http://127.0.0.1:4321"
BASE = f"{ROOT}/v1"


def test_every_command_gets_the_common_variables() -> None:
    """OpenAI's clients get the base URL with `/v1`, Anthropic's without; the rest is kept."""
    found = prepared(["my-agent", "--x"], {"OPENAI_BASE_URL": "http://old/v1", "A": "b"}, ROOT)
    assert found.command == ("my-agent", "--x")
    assert found.environment["OPENAI_BASE_URL"] == found.environment["OPENAI_API_BASE"] == BASE
    assert found.environment["ANTHROPIC_BASE_URL"] == ROOT
    assert found.environment["A"] == "b"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["codex", "exec", "x"], ("codex", "-c", f'openai_base_url="{BASE}"', "exec", "x")),
        (
            ["npx", "-y", "codex", "x"],
            ("npx", "-y", "codex", "-c", f'openai_base_url="{BASE}"', "x"),
        ),
        (["/usr/bin/claude", "-p", "codex"], ("/usr/bin/claude", "-p", "codex")),
        (["python", "codex"], ("python", "codex")),
    ],
)
def test_options_stand_behind_the_command(command: list[str], expected: tuple[str, ...]) -> None:
    """Also behind a launcher, and never because an argument is called like an agent."""
    assert prepared(command, {}, ROOT).command == expected


def test_a_config_in_a_variable_keeps_what_the_user_has_in_it() -> None:
    """opencode's inline config: only the addresses are replaced."""
    own = {"model": "openai/x", "provider": {"openai": {"options": {"apiKey": "k"}}}}
    name = "OPENCODE_CONFIG_CONTENT"
    found = json.loads(prepared(["opencode"], {name: json.dumps(own)}, ROOT).environment[name])
    assert found["model"] == "openai/x"
    assert found["provider"]["openai"]["options"] == {"apiKey": "k", "baseURL": BASE}
    assert found["provider"]["anthropic"]["options"] == {"baseURL": BASE}
    for broken in ("[", "[1]", ""):
        assert json.loads(prepared(["opencode"], {name: broken}, ROOT).environment[name])


def test_a_web_proxy_does_not_get_loopback_requests() -> None:
    """With a proxy in the environment, loopback is left out of it."""
    found = prepared(["x"], {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp"}, ROOT).environment
    assert found["NO_PROXY"].split(",") == ["corp", "127.0.0.1", "localhost"]
    assert "NO_PROXY" not in prepared(["x"], {}, ROOT).environment


def test_each_client_is_known_by_each_of_its_names() -> None:
    """One that reads no variable says what to do by hand."""
    for known in CLIENTS:
        for name in known.names:
            assert client_of([f"/opt/bin/{name}"]) is known
            note = prepared([name], {}, ROOT).note
            assert bool(note) == bool(known.by_hand)
            assert "{" not in note
