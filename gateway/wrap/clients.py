"""What each agent reads to find its provider, as data.

Sources: the clients' own documentation, and for those of `docs/clients` a run against a scripted
provider; `tests/wrap/test_real_clients.py` repeats five of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

BASE = "{base}"
"""The gateway's base URL with its version, as OpenAI's clients want it."""

ROOT = "{root}"
"""The same without `/v1`, as Anthropic's clients want it."""

COMMON = {
    "OPENAI_BASE_URL": BASE,  # the openai package and what is built on it
    "OPENAI_API_BASE": BASE,  # LiteLLM, LangChain, aider
    "ANTHROPIC_BASE_URL": ROOT,  # the anthropic package, Claude Code, LiteLLM
    "ANTHROPIC_API_BASE": ROOT,  # LiteLLM, which prefers it
}
"""Set for every command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One agent: the names of its command, and what it reads besides the common variables.

    `options` are put right behind the command's name. `json_variable`: (name, value): a variable
    whose value is JSON; the user's own value is kept where this one says nothing. `by_hand`: what
    the user has to do, for a client that reads neither.
    """

    title: str
    names: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    json_variable: tuple[str, Mapping[str, Any]] | None = None
    by_hand: str = ""


def _opencode() -> Mapping[str, Any]:
    return {"provider": {name: {"options": {"baseURL": BASE}} for name in ("openai", "anthropic")}}


CLIENTS = (
    Client(title="Claude Code", names=("claude",)),
    Client(title="Codex", names=("codex",), options=("-c", f'openai_base_url="{BASE}"')),
    Client(
        title="opencode",
        names=("opencode",),
        json_variable=("OPENCODE_CONFIG_CONTENT", _opencode()),
    ),
    Client(title="aider", names=("aider",), variables={"AIDER_OPENAI_API_BASE": BASE}),
    Client(title="mini-swe-agent", names=("mini", "mini-swe-agent", "mini-extra", "mini-e")),
    Client(
        title="goose",
        names=("goose",),
        variables={
            "OPENAI_HOST": ROOT,
            "OPENAI_BASE_PATH": "v1/chat/completions",
            "ANTHROPIC_HOST": ROOT,
        },
    ),
    Client(title="Qwen Code", names=("qwen",)),
    Client(
        title="Cline",
        names=("cline",),
        by_hand="choose the provider `OpenAI Compatible` in Cline with the base URL {base}",
    ),
    Client(
        title="Continue",
        names=("cn",),
        by_hand="set `apiBase: {base}` for the model in Continue's config.yaml",
    ),
    Client(
        title="pi",
        names=("pi",),
        by_hand='set `"baseUrl": "{base}"` for the provider in pi\'s models.json',
    ),
    Client(
        title="Gemini CLI",
        names=("gemini",),
        by_hand="Gemini CLI speaks Google's own API, which the gateway does not steer",
    ),
)

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A command as it is to be started; `note` is for the user, or empty."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    note: str = ""


def client_of(command: Sequence[str]) -> Client | None:
    """The client that a command starts, also through `npx`, `uvx` and the like; None if unknown."""
    launchers = {"npx", "bunx", "uvx", "pipx", "env", "run", "exec", "dlx", "pnpm", "bun", "uv"}
    for word in command:
        name = PurePath(word).name.lower().removesuffix(".exe").removesuffix(".cmd")
        found = next((client for client in CLIENTS if name in client.names), None)
        if found is not None:
            return found
        if name not in launchers and not word.startswith("-") and "=" not in word:
            return None
    return None


def prepared(command: Sequence[str], environment: Mapping[str, str], root: str) -> Prepared:
    """`command` and its variables, pointed to the gateway at `root` (`http://127.0.0.1:8080`)."""
    client = client_of(command)
    values = dict(COMMON)
    options: tuple[str, ...] = ()
    after, note = 1, ""
    if client is not None:
        values |= client.variables
        options = tuple(_filled(option, root) for option in client.options)
        after = 1 + next(i for i, word in enumerate(command) if client_of([word]) is client)
        note = _filled(client.by_hand, root)
    fresh = dict(environment) | {name: _filled(value, root) for name, value in values.items()}
    if client is not None and client.json_variable is not None:
        name, value = client.json_variable
        fresh[name] = _merged_json(environment.get(name), value, root)
    _leave_out_proxies(fresh)
    return Prepared(
        command=(*command[:after], *options, *command[after:]), environment=fresh, note=note
    )


def _filled(text: str, root: str) -> str:
    return text.replace(BASE, f"{root}/v1").replace(ROOT, root)


def _merged_json(own: str | None, value: Mapping[str, Any], root: str) -> str:
    try:
        before = json.loads(own) if own else {}
    except ValueError:
        before = {}
    filled = json.loads(_filled(json.dumps(value), root))
    return json.dumps(_merged(before if isinstance(before, dict) else {}, filled))


def _merged(before: dict[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(before)
    for key, value in fresh.items():
        known = result.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        result[key] = _merged(known, value) if both else value  # type: ignore[arg-type]
    return result


def _leave_out_proxies(environment: dict[str, str]) -> None:
    """A proxy for web traffic cannot reach this machine's loopback interface."""
    if not any(name.lower() in _PROXIES and value for name, value in environment.items()):
        return
    for name in ("NO_PROXY", "no_proxy"):
        known = environment.get(name, "")
        environment[name] = ",".join(filter(None, [known, "127.0.0.1", "localhost"]))
