"""The program that an agent runs at each hook: the list first, then the alarms of the session.

It is started by its path, with the client, the folder of its files and the config file. A hook runs
before every call, so the list needs the standard library alone: nothing of the gateway is imported
before the list was asked, and what fails behind it is left out."""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

Object = dict[str, Any]
BEFORE_A_CALL = "PreToolUse"
_NO_LIST: Object = {"ask": [], "deny": [], "share": 0.1}
_READS = ("Read", "Grep", "Glob", "LS")  # tools that change nothing
# Members of the clients' own tools that no machine executes. Source: Claude Code's tools.
_PROSE = ("content", "new_string", "old_string", "new_source", "description", "prompt")
_END = r"(?![\w-])"  # of a word
_QUOTES = re.compile("[\"'\\\\]")
# Words of calls that may take the hooks away.
_OWN = ("settings.json", "settings.local.json", ".codex", "disableAllHooks", "gateway hooks ")


class Hook(NamedTuple):
    """One run of the program."""

    client: str  # claude-code or codex
    folder: Path  # of the files that hooks keep
    config: str  # the config file, absolute; "" for none


def main(words: list[str]) -> None:
    """Read the event, and print the answer in the client's form."""
    hook = Hook(words[0], folder=Path(words[1]), config=words[2])
    answer: Object = {}
    kind = BEFORE_A_CALL  # of an event that cannot be read
    try:
        event = json.load(sys.stdin.buffer)
        kind = event["hook_event_name"]
        known = list_of(hook)
        if kind == BEFORE_A_CALL:
            answer = _held(hook, event, known)
        if not answer:
            with suppress(Exception):  # alarms are no reason to stop an agent
                answer = _alarms(hook, event, known)
    except Exception as exc:
        if hook.config and kind == BEFORE_A_CALL:  # a list that cannot be asked still holds
            answer = decision(hook, "ask", f"the operator's list cannot be read ({exc!r})")
    if answer:
        json.dump(answer, sys.stdout)


def decision(hook: Hook, act: str, reason: str) -> Object:
    """The answer that holds a call back; `act`: ask or deny. Codex knows no question here: what a
    person is to be asked is denied there."""
    if hook.client == "codex":
        act = "deny"
    own = {
        "hookEventName": BEFORE_A_CALL,
        "permissionDecision": act,
        "permissionDecisionReason": f"held back by a hook of the gateway: {reason}",
    }
    return {"hookSpecificOutput": own}


def _held(hook: Hook, event: Object, known: Object) -> Object:
    """The answer for a call that the list holds back; empty for others."""
    tool = event["tool_name"]
    skipped = () if tool.startswith("mcp__") else _PROSE
    text = " ".join(_texts(event["tool_input"], skipped))
    if tool == "apply_patch":  # the files of a patch, not its lines
        text = " ".join(re.findall(r"^\*\*\* .*", text, re.MULTILINE))
    text = plain(text)
    for act in ("deny", "ask"):
        for entry in known[act]:
            if _fits(entry, tool, text):
                return decision(hook, act, f"`{entry}` is in client_hooks.{act}")
    own = (*_OWN, str(hook.folder), hook.config or _OWN[0])
    if tool not in _READS and any(name in text for name in own):
        return decision(hook, "ask", "it may change what decides about this hook")
    return {}


def list_of(hook: Hook) -> Object:
    """The operator's list: of the config file, else as it was read last. Raises OSError, ValueError
    or ConfigError: neither can be read."""
    if not hook.config:
        return _NO_LIST
    name = sha256(hook.config.encode()).hexdigest()
    path = hook.folder / f"list-{name}.json"  # as it was read last
    known: Object | None = None
    stamp = 0
    with suppress(OSError, ValueError):
        known = json.loads(path.read_bytes())
    with suppress(OSError):
        stamp = Path(hook.config).stat().st_mtime_ns
    if known is None or known["stamp"] != stamp:
        from gateway.features.client_hooks.session_alarms import read_list

        known = {**read_list(hook.config, known), "stamp": stamp}
        write(path, json.dumps(known))
    return known


def write(path: Path, text: str) -> None:
    """Replace a file; a new one is for this user alone. Raises: OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o600
    if path.exists():
        mode = path.stat().st_mode
    fresh = path.with_name(f"{path.name}.{time.time_ns()}")
    fresh.touch(mode=mode)
    fresh.write_bytes(text.encode())
    fresh.replace(path)


def _texts(value: Any, skipped: tuple[str, ...]) -> Iterator[str]:
    """The texts in the arguments of a call, without the members of these names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in skipped:
                yield from _texts(each, skipped)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, skipped)


def plain(text: str) -> str:
    """A text without quotes and backslashes, its words separated by one space."""
    return " ".join(_QUOTES.sub("", text).split())


def _fits(entry: str, tool: str, text: str) -> bool:
    """True if an entry of the list names the tool, or its words are in the text in their order; a
    star at its end lets the last word go on. Each part is searched once, so the time is linear."""
    if entry.startswith("tool:"):
        return fnmatchcase(tool, entry[5:])
    at = 0
    parts = [f"{re.escape(plain(part))}{_END}" for part in entry.split("*") if part]
    if parts and entry.endswith("*"):
        parts[-1] = parts[-1].removesuffix(_END)
    for part in parts:
        found = re.compile(rf"(?<![\w.-]){part}").search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


def _alarms(hook: Hook, event: Object, known: Object) -> Object:
    """The answer about the session. A log is read again when as much time has passed as
    its last reading may take; at the end of a turn always."""
    path = Path(event["transcript_path"])
    if agent := event.get("agent_id"):
        path = path.with_suffix("") / "subagents" / f"agent-{agent}.jsonl"
    file = hook.folder / f"{path.stem}.json"
    state: Object = {"step": -1, "at": 0, "took": 0}
    with suppress(OSError, ValueError):  # none yet, or a cut one: it is written again
        state |= json.loads(file.read_bytes())
    kind = event["hook_event_name"]
    now = time.time()
    if kind == BEFORE_A_CALL and (now - state["at"]) * known["share"] < state["took"]:
        return {}
    from gateway.features.client_hooks.session_alarms import look

    answer, step = look(kind, hook.config, path, since=state["step"])
    write(file, json.dumps({"step": step, "at": now, "took": time.process_time()}))
    return answer


if __name__ == "__main__":
    main(sys.argv[1:])
