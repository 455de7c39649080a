"""Each client as people log in with it: its command, its variables and files, and its host.

The clients are found on the path, in the folder that DIALECT_AGENTS names (npm's `.bin`), or in
`~/.cache/gateway-seats`, where `npm install @openai/codex @anthropic-ai/claude-code
@google/gemini-cli @github/copilot` puts them. In a value `{url}` is the host's address,
`{tls}` the one with TLS, `{home}` the client's folder, `{session}` an id.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.seats import hosts

TASK = "look at the shell"
FOLDERS = (
    os.environ.get("DIALECT_AGENTS", ""),
    str(Path.home() / ".cache/gateway-seats/node_modules/.bin"),
)
PATH = os.pathsep.join([*filter(None, FOLDERS), os.environ["PATH"]])
SESSION = "{session}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One way to use one client.

    `direct`: its variables that send it to its host; with a gateway they are what the user had set
    before. `options`: behind the command's name, `alone`: the same, without a gateway only.
    `files`: below its folder. `upstream`: variables of the gateway that name the host, where none
    of the client's does. `signs`: the gateway signs in the client's place."""

    kind: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, str] = field(default_factory=dict)
    signs: bool = False
    upgrades: bool = True
    before: tuple[str, ...] = ()
    """A task before that of `command`, in the same folder."""


def found(seat: Seat) -> str | None:
    """Path of its program; None: not installed."""
    return shutil.which(seat.command[0], path=PATH)


def narrow(seat: Seat) -> Seat | None:
    """The same with a context of less than a hundred thousand tokens, before the end of which it
    has its history summarised; None: it has no such setting."""
    match seat.command[0]:
        case "codex":
            limit = ("-c", "model_auto_compact_token_limit=20000")
            return replace(seat, options=(*seat.options, *limit))
        case "claude":
            return replace(seat, env={**seat.env, "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"})
        case "gemini":
            path = ".gemini/settings.json"
            settings = json.loads(seat.files.get(path, "{}"))
            text = json.dumps({**settings, "model": {"compressionThreshold": 0.05}})
            files = {**seat.files, path: text}
            # The first task of a session is never summarised.
            again = (*seat.command, "--resume", "latest")
            return replace(seat, files=files, before=seat.command, command=again)
    return None


def filled(value: str, host: hosts.Host, home: Path) -> str:
    """`value` with the addresses in place."""
    own = (("{url}", host.url), ("{tls}", host.tls_url), ("{home}", str(home)))
    for name, text in (*own, ("{session}", str(uuid.uuid4()))):
        value = value.replace(name, text)
    return value


_CODEX = (
    "codex",
    "exec",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    TASK,
)
_CODEX_HOME = {"CODEX_HOME": "{home}/codex"}
_CLAUDE = ("claude", "-p", TASK, "--allowedTools", "Bash", "--session-id", SESSION)
_CLAUDE_ENV = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
_GEMINI = ("gemini", "--yolo", "--skip-trust", "-p", TASK)
_COPILOT = (
    *("copilot", "-p", TASK, "--allow-all-tools", "--no-auto-update", "--session-id", SESSION),
    *("--no-color",),
)
_COPILOT_ENV = {"COPILOT_HOME": "{home}/copilot", "COPILOT_OFFLINE": "true"}
_AWS = {"AWS_ACCESS_KEY_ID": hosts.AWS_KEY, "AWS_SECRET_ACCESS_KEY": hosts.AWS_SECRET}
_BEDROCK = {**_CLAUDE_ENV, "CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": hosts.REGION}
_VERTEX = {
    **_CLAUDE_ENV,
    "CLAUDE_CODE_USE_VERTEX": "1",
    "ANTHROPIC_VERTEX_PROJECT_ID": hosts.PROJECT,
    "CLOUD_ML_REGION": "us-east5",
    "GOOGLE_APPLICATION_CREDENTIALS": "{home}/google.json",
}
_LOGIN = {"codex/auth.json": json.dumps(hosts.login())}
_CHATGPT_BASE = ("-c", 'openai_base_url="{url}/backend-api/codex"')
_CHATGPT_ACCOUNT = ("-c", 'chatgpt_base_url="{tls}/backend-api"')
_CHATGPT_AT = {"GATEWAY_DEFAULT_UPSTREAM__CHATGPT_API_BASE": "{url}/backend-api"}
_GOOGLE_LOGIN = json.dumps(
    {
        "type": "external_account",
        "audience": "//iam.googleapis.com/made-up",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "{url}/token",
        "credential_source": {"file": "{home}/subject"},
    }
)
_GPT = {"COPILOT_PROVIDER_API_KEY": hosts.OPENAI_KEY, "COPILOT_MODEL": "gpt-5.4"}
_SELECTED = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'

_CODEX_KEY = Seat(
    kind="openai",
    command=_CODEX,
    env={**_CODEX_HOME, "CODEX_API_KEY": hosts.OPENAI_KEY},
    alone=("-c", 'openai_base_url="{url}/v1"'),
    upstream={"OPENAI_BASE_URL": "{url}/v1"},
)
_CODEX_CHATGPT = Seat(
    kind="chatgpt",
    command=_CODEX,
    env={**_CODEX_HOME, "CODEX_CA_CERTIFICATE": "{home}/authority.pem"},
    options=_CHATGPT_ACCOUNT,
    alone=_CHATGPT_BASE,
    upstream=_CHATGPT_AT,
    files=_LOGIN,
)


def _copilot(kind: str, env: Mapping[str, str], url: str = "{url}/v1") -> Seat:
    return Seat(
        kind=kind,
        command=_COPILOT,
        env={**_COPILOT_ENV, **env},
        direct={"COPILOT_PROVIDER_BASE_URL": url},
    )


SEATS = {
    "codex api key": replace(_CODEX_KEY, upgrades=False),
    "codex api key websocket": _CODEX_KEY,
    "codex chatgpt": replace(_CODEX_CHATGPT, upgrades=False),
    "codex chatgpt websocket": _CODEX_CHATGPT,
    "claude api key": Seat(
        kind="anthropic",
        command=_CLAUDE,
        env={**_CLAUDE_ENV, "ANTHROPIC_API_KEY": hosts.ANTHROPIC_KEY},
        direct={"ANTHROPIC_BASE_URL": "{url}"},
    ),
    "claude oauth": Seat(
        kind="anthropic",
        command=_CLAUDE,
        env={**_CLAUDE_ENV, "CLAUDE_CODE_OAUTH_TOKEN": hosts.OAUTH_TOKEN},
        direct={"ANTHROPIC_BASE_URL": "{url}"},
    ),
    "claude bedrock": Seat(
        kind="bedrock",
        command=_CLAUDE,
        env={**_BEDROCK, **_AWS},
        direct={"ANTHROPIC_BEDROCK_BASE_URL": "{url}"},
        signs=True,
    ),
    "claude bedrock bearer": Seat(
        kind="bedrock",
        command=_CLAUDE,
        env={**_BEDROCK, "AWS_BEARER_TOKEN_BEDROCK": hosts.AWS_BEARER},
        direct={"ANTHROPIC_BEDROCK_BASE_URL": "{url}"},
        signs=True,
    ),
    "claude vertex": Seat(
        kind="vertex",
        command=_CLAUDE,
        env=_VERTEX,
        direct={"ANTHROPIC_VERTEX_BASE_URL": "{url}/v1"},
        signs=True,
        files={"google.json": _GOOGLE_LOGIN, "subject": "made-up"},
    ),
    "gemini api key": Seat(
        kind="google",
        command=_GEMINI,
        env={"GEMINI_API_KEY": hosts.GOOGLE_KEY, "GEMINI_TELEMETRY_ENABLED": "false"},
        direct={"GOOGLE_GEMINI_BASE_URL": "{url}"},
        files={".gemini/settings.json": _SELECTED},
    ),
    "gemini vertex": Seat(
        kind="vertex",
        command=_GEMINI,
        env={
            "GOOGLE_GENAI_USE_VERTEXAI": "true",
            "GOOGLE_CLOUD_PROJECT": hosts.PROJECT,
            "GOOGLE_CLOUD_LOCATION": "global",
            "GOOGLE_APPLICATION_CREDENTIALS": "{home}/google.json",
            "GEMINI_TELEMETRY_ENABLED": "false",
        },
        direct={"GOOGLE_VERTEX_BASE_URL": "{url}"},
        files={"google.json": _GOOGLE_LOGIN, "subject": "made-up"},
    ),
    "copilot chat": _copilot("openai", _GPT),
    "copilot responses": _copilot("openai", {**_GPT, "COPILOT_PROVIDER_WIRE_API": "responses"}),
    "copilot responses websocket": _copilot(
        "openai",
        {
            **_GPT,
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "COPILOT_PROVIDER_TRANSPORT": "websockets",
        },
    ),
    "copilot anthropic": _copilot(
        "anthropic",
        {
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_API_KEY": hosts.ANTHROPIC_KEY,
            "COPILOT_MODEL": "claude-sonnet-4-5",
        },
        url="{url}",
    ),
}
