"""Agents of the local harness: the command of a real one, or the loop of a scripted one."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LIMIT_S = 120
MOST_CALLS = 30
_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The surroundings of an agent. `model`: without its provider; `logs`: for its own files."""

    model: str
    url: str
    key_name: str
    key: str
    home: Path
    work: Path
    logs: Path

    def env(self, more: Mapping[str, str]) -> dict[str, str]:
        """Its environment: nothing of the caller's but the path to programs."""
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "dumb"}
        return {**own, self.key_name: self.key, **more}


def run(agent: str, text: str, place: Place) -> str | None:
    """Let the agent do the task; the name of what went wrong, or None."""
    if agent == "scripted":
        return _scripted(text, place)
    command, more = _COMMANDS[agent](text, place)
    with (place.logs / f"{agent}.txt").open("wb") as out:
        try:
            done = subprocess.run(
                command,
                cwd=place.work,
                env=place.env(more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "AgentTimeoutError"
    return None if done.returncode == 0 else "NonZeroAgentExitCodeError"


def version(agent: str) -> str:
    """The version that a real agent prints of itself."""
    if agent not in _COMMANDS:
        return "1"
    option = "--help" if agent == "mini-swe-agent" else "--version"
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MSWEA_CONFIGURED": "true"}
    env["MSWEA_GLOBAL_CONFIG_DIR"] = "/tmp"  # noqa: S108 - it only reads there
    done = subprocess.run(
        [_PROGRAMS[agent], option], env=env, capture_output=True, text=True, check=False
    )
    found = re.search(r"\d+\.\d+[\w.]*\d", done.stdout)
    return found[0] if found else "unknown"


def _claude(text: str, place: Place) -> tuple[Sequence[str], dict[str, str]]:
    command = ["claude", "-p", text, "--allowedTools", "Bash", "--model", place.model]
    quiet = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return command, {"ANTHROPIC_BASE_URL": place.url, **quiet}


def _mini(text: str, place: Place) -> tuple[Sequence[str], dict[str, str]]:
    command = ["mini", "-m", f"openai/{place.model}", "-t", text, "-y", "--exit-immediately"]
    command += ["-l", "0", "-o", str(place.logs / "mini-swe-agent.traj.json")]
    own = {"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(place.home)}
    own |= {"MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return command, {**own, "OPENAI_API_BASE": place.url, "OPENAI_BASE_URL": place.url}


_COMMANDS = {"claude-code": _claude, "mini-swe-agent": _mini}
_PROGRAMS = {"claude-code": "claude", "mini-swe-agent": "mini"}
LOCAL = ("scripted", *_COMMANDS)


def _scripted(text: str, place: Place) -> str | None:
    """A plain tool loop over chat completions."""
    messages: list[Any] = [{"role": "system", "content": "You are an agent with a shell."}]
    messages.append({"role": "user", "content": text})
    for _ in range(MOST_CALLS):
        body = {"model": place.model, "messages": messages, "tools": [_TOOL]}
        status, answer = _post(place, body)
        if status != 200:
            return "NonZeroAgentExitCodeError"
        message = answer["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            seen = _shell(json.loads(call["function"]["arguments"])["command"], place)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": seen})
    (place.logs / "messages.json").write_text(json.dumps(messages, indent=1))
    return None


def _post(place: Place, body: Mapping[str, Any]) -> tuple[int, Any]:
    parts = urlsplit(place.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=LIMIT_S)
    headers = {"content-type": "application/json", "authorization": f"Bearer {place.key}"}
    connection.request("POST", f"{parts.path}/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def _shell(command: str, place: Place) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=place.work,
        env=place.env({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return f"{done.stdout}{done.stderr}exit status {done.returncode}"
