"""What each client gets to read: variables and options, as a table says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.features.wrap.wrapped import CLIENTS, client_of, prepared, with_upstreams

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


def test_kilo_has_a_variable_of_its_own() -> None:
    """It is made of opencode, and its variables are called after itself."""
    name = "KILO_CONFIG_CONTENT"
    found = json.loads(prepared(["kilo"], {name: '{"model": "a"}'}, ROOT).environment[name])
    assert found["model"] == "a"
    assert found["provider"]["anthropic"]["options"] == {"baseURL": BASE}


@pytest.mark.parametrize(
    ("program", "name"), [("kimi", "KIMI_BASE_URL"), ("openhands", "LLM_BASE_URL")]
)
def test_an_address_of_the_users_is_replaced(program: str, name: str) -> None:
    """The requests go where it pointed: a key of that provider goes to no other one."""
    found = prepared([program], {name: "https://p/v1"}, ROOT)
    assert found.environment[name] == BASE
    assert not found.note
    assert with_upstreams([program], {name: "https://p/v1"})["OPENAI_BASE_URL"] == "https://p/v1"
    assert name not in prepared([program], {}, ROOT).environment


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
            note = prepared([name], {"HOME": "/nowhere"}, ROOT).note
            assert bool(note) == bool(known.by_hand and name != "copilot")
            assert "{base}" not in note


@pytest.mark.parametrize(
    ("login", "environment", "path"),
    [
        ({"auth_mode": "chatgpt", "tokens": {"id_token": "x"}}, {}, "/backend-api/codex"),
        ({"OPENAI_API_KEY": None, "tokens": {"id_token": "x"}}, {}, "/backend-api/codex"),
        ({"OPENAI_API_KEY": "k", "tokens": {"id_token": "x"}}, {}, "/v1"),
        ({"auth_mode": "apikey", "tokens": {"id_token": "x"}}, {}, "/v1"),
        ({"auth_mode": "chatgpt", "tokens": {"id_token": "x"}}, {"CODEX_API_KEY": "k"}, "/v1"),
        (["broken"], {}, "/v1"),
        (None, {}, "/v1"),
    ],
)
def test_codex_goes_where_its_login_is_for(
    login: object, environment: dict[str, str], path: str, tmp_path: Path
) -> None:
    """A ChatGPT login to ChatGPT's path, an API key to the API's."""
    if login is not None:
        (tmp_path / "auth.json").write_text(json.dumps(login))
    found = prepared(["codex"], {"CODEX_HOME": str(tmp_path), **environment}, ROOT)
    assert found.command[2] == f'openai_base_url="{ROOT}{path}"'


def test_gemini_is_told_how_to_choose_its_login(tmp_path: Path) -> None:
    """It refuses another address with a login that it infers from the variables alone."""
    settings = tmp_path / ".gemini/settings.json"
    environment = {"HOME": str(tmp_path), "GEMINI_API_KEY": "k"}
    found = prepared(["gemini"], environment, ROOT)
    assert found.environment["GOOGLE_GEMINI_BASE_URL"] == ROOT
    assert found.environment["GOOGLE_VERTEX_BASE_URL"] == ROOT
    assert "selectedType" in found.note
    assert found.environment["CODE_ASSIST_ENDPOINT"] == ROOT
    for name in ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"):
        assert not prepared(["gemini"], {**environment, name: "true"}, ROOT).note
    settings.parent.mkdir()
    for chosen, known in {"cloud-shell": False, "oauth-personal": True, "vertex-ai": True}.items():
        settings.write_text(f'{{ // mine\n"security": {{"auth": {{"selectedType": "{chosen}"}}}}}}')
        assert bool(prepared(["gemini"], environment, ROOT).note) != known


def test_copilot_is_wrapped_with_a_provider_of_the_users() -> None:
    """Its base URL has the form of its type; with GitHub's own models Copilot's API is."""
    name, kind = "COPILOT_PROVIDER_BASE_URL", "COPILOT_PROVIDER_TYPE"
    for environment in ({}, {name: "https://p", kind: "azure"}):
        found = prepared(["copilot"], environment, ROOT)
        assert bool(found.note) == (kind in environment)
        assert found.environment.get(name) == environment.get(name)
        assert found.environment["COPILOT_API_URL"] == f"{ROOT}/copilot"
    company = {"COPILOT_API_URL": "https://copilot-api.corp.ghe.com"}
    found_base = with_upstreams(["copilot"], company)
    assert found_base["GATEWAY_DEFAULT_UPSTREAM__COPILOT_API_BASE"] == company["COPILOT_API_URL"]
    own = {name: "https://p/v1"}
    assert prepared(["copilot"], own, ROOT).environment[name] == BASE
    assert not prepared(["copilot"], own, ROOT).note
    assert with_upstreams(["copilot"], own)["OPENAI_BASE_URL"] == "https://p/v1"
    own = {name: "https://p", kind: "anthropic", "ANTHROPIC_BASE_URL": "https://other"}
    assert prepared(["copilot"], own, ROOT).environment[name] == ROOT
    assert with_upstreams(["copilot"], own)["ANTHROPIC_BASE_URL"] == "https://p"


def test_the_gateway_asks_the_provider_that_the_client_would_have_asked() -> None:
    """Claude Code's and Gemini's variables become the gateway's; what is set for it is kept."""
    own = {
        "ANTHROPIC_BEDROCK_BASE_URL": "https://bedrock.corp/",
        "ANTHROPIC_VERTEX_BASE_URL": "https://vertex.corp/v1",
        "GOOGLE_GEMINI_BASE_URL": "https://gemini.corp",
        "CODE_ASSIST_ENDPOINT": "https://assist.corp",
    }
    at = "GATEWAY_DEFAULT_UPSTREAM__{}_API_BASE".format
    found = with_upstreams(["npx", "claude"], own)
    assert found[at("BEDROCK")] == "https://bedrock.corp"
    assert found[at("VERTEX")] == "https://vertex.corp"
    assert at("GEMINI") not in found
    credentials = "GATEWAY_DEFAULT_UPSTREAM__CLOUD_CREDENTIALS"
    assert found[credentials] == "true"
    skipped = {f"CLAUDE_CODE_SKIP_{name}_AUTH": "1" for name in ("BEDROCK", "VERTEX")}
    assert credentials not in with_upstreams(["claude"], own | skipped)
    assert credentials not in with_upstreams(["gemini"], own)
    assert with_upstreams(["gemini"], own)[at("GEMINI")] == "https://gemini.corp"
    assert with_upstreams(["gemini"], own)[at("CODE_ASSIST")] == "https://assist.corp"
    assert with_upstreams(["claude"], {**own, at("VERTEX"): "v"})[at("VERTEX")] == "v"
    assert with_upstreams(["make"], own) == own
    wrapped = prepared(["claude"], own, ROOT).environment
    assert wrapped["ANTHROPIC_BEDROCK_BASE_URL"] == ROOT
    assert wrapped["ANTHROPIC_VERTEX_BASE_URL"] == BASE
    assert wrapped["CLAUDE_CODE_SKIP_BEDROCK_AUTH"] == "1"
    assert wrapped["CLAUDE_CODE_SKIP_VERTEX_AUTH"] == "1"
