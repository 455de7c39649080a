"""Each client as people log in with it: its command, its variables and files, and its host.

The clients are found on the path, in the folder that DIALECT_AGENTS names (npm's `.bin`), or in
`~/.cache/gateway-seats`, where `npm install @openai/codex @anthropic-ai/claude-code
@google/gemini-cli @github/copilot` puts them. In a value `{url}` is the host's address,
`{tls}` the one with TLS, `{home}` the client's folder, `{session}` an id.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steering_gateway_testing.gateways import merged
from tests.seats import hosts

FOLDERS = (
    os.environ.get("DIALECT_AGENTS", ""),
    str(Path.home() / ".cache/gateway-seats/node_modules/.bin"),
)
PATH = os.pathsep.join([*filter(None, FOLDERS), os.environ["PATH"]])
FILE = Path(__file__).with_suffix(".toml")


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


def _read() -> dict[str, Seat]:
    """The seats of `seats.toml`, by name."""
    text = FILE.read_text()
    for name in re.findall(r"\{([A-Z_]+)\}", text):
        value = json.dumps(hosts.login()) if name == "LOGIN" else getattr(hosts, name)
        text = text.replace(f"{{{name}}}", value.replace('"', r"\""))
    tables = tomllib.loads(text)
    known = {**tables["base"], **tables["seat"]}
    return {name: _seat(_whole(row, known)) for name, row in tables["seat"].items()}


def _whole(row: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the fields of those that it is like."""
    like = row.get("like", [])
    out: dict[str, Any] = {}
    for name in [like] if isinstance(like, str) else like:
        out = merged(out, _whole(known[name], known))
    return merged(out, row)


def _seat(row: dict[str, Any]) -> Seat:
    row.pop("like", None)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Seat(**fields)


SEATS = _read()
