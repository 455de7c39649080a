"""Puts the hooks into the settings of an agent, and takes them out again, if the person agrees.

The file is an object in JSON that the person has, too. It is kept as it was, so that it is the same
byte for byte after the hooks were removed; what others changed meanwhile stays."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path

from msgspec import ValidationError, convert

from gateway.commands.store import reported, say
from gateway.errors import ConfigError, in_words
from gateway.features.client_hooks.answer import BEFORE_A_CALL, Hook, write
from gateway.features.client_hooks.answer import __file__ as PROGRAM
from gateway.process.running_gateways import state_folder
from gateway.values import FieldDict
from gateway.wire.coerce import text_at

# By agent: the variable that names the folder of its settings, that folder below the home
# directory, the file with the hooks, and a note for the person. Source: their "Hooks reference".
AGENTS = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "settings.json", ""),
    "codex": (
        "CODEX_HOME",
        ".codex",
        "hooks.json",
        "(Codex runs a hook only after you have trusted it: type /hooks there.) ",
    ),
}


def hooks_folder() -> Path:
    """The folder of the files that hooks keep."""
    return state_folder() / "hooks"


def with_hooks(text: str, hook: Hook) -> str:
    """The settings with the hooks for these facts, in place of older ones. Raises ValueError or
    ValidationError: they are not as the agent's reference says."""
    known = _without(text)
    words = [sys.executable, "-I", PROGRAM, *map(str, hook)]
    # After the time-out, in seconds, the agent goes on without an answer.
    own = {"type": "command", "command": shlex.join(words), "timeout": 30}
    for event in (BEFORE_A_CALL, "Stop"):
        known.setdefault("hooks", {}).setdefault(event, []).append({"hooks": [own]})
    return _written(known, text)


def without_hooks(text: str, agent: str) -> str:
    """The settings without the hooks: as they were, "" where there were none, if nobody changed
    them. Raises as `with_hooks` does."""
    with suppress(OSError, ValueError):
        record = json.loads(_record(agent).read_bytes())
        if record["after"] == text:
            return str(record["before"])
    known = _without(text)
    if PROGRAM in text:
        return _written(known, text)
    return text


def change(agent: str, edit: Callable[[str], str], *, yes: bool) -> int:
    """Show a change of the agent's settings, and make it if the person agrees: with `yes`, or when
    asked. Returns the command's exit status. Raises ConfigError: it cannot be made without loss, or
    nobody can be asked."""
    variable, home, name, note = AGENTS[agent]
    path = (Path(os.environ.get(variable) or Path.home() / home) / name).resolve()  # behind links
    try:
        before = path.read_bytes().decode() if path.exists() else ""
        after = edit(before)
    except (OSError, ValueError, ValidationError) as exc:
        raise ConfigError(f"{path}: cannot be changed without loss: {in_words(exc)}") from exc
    if before == after:
        say(f"{path}: nothing to change")
        return 0
    lines = unified_diff(before.splitlines(), after.splitlines(), str(path), lineterm="")
    say("\n".join(lines))
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked without a terminal; --yes makes the change")
        if input(f"Make this change? {note}[y/N] ").lower() != "y":
            return 1
    # What they were without the hooks is kept as long as they have them.
    original = without_hooks(before, agent)
    with reported():
        if original == after:
            _record(agent).unlink(missing_ok=True)
        else:
            write(_record(agent), json.dumps({"before": original, "after": after}))
        if after:
            write(path, after)
        else:
            path.unlink()
    return 0


def _record(agent: str) -> Path:
    return hooks_folder() / f"{agent}.json"


def _without(text: str) -> FieldDict:
    """The settings without our hooks, and without what is empty then."""
    known = convert(json.loads(text or "{}"), FieldDict)
    hooks = convert(known.get("hooks", {}), dict[str, list[FieldDict]])
    if PROGRAM in text:
        for event, groups in hooks.items():
            for group in groups:
                listed = group.get("hooks", ())
                group["hooks"] = [h for h in listed if PROGRAM not in text_at(h, "command")]
            hooks[event] = [group for group in groups if group["hooks"]]
        known["hooks"] = {event: groups for event, groups in hooks.items() if groups}
        if not known["hooks"]:
            del known["hooks"]
    return known


def _written(known: FieldDict, like: str) -> str:
    """Settings as agents write them, ended as a text is."""
    made = json.dumps(known, indent=2, ensure_ascii=False)
    if like.endswith("}"):
        return made
    return f"{made}\n"
