"""The end of the demo: what was mined from its runs, and a third run that is given it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI
from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from gateway.auth.authenticator import process_key
from gateway.demo.agent import Outcome, Turn, run_agent
from gateway.demo.model import ScriptedModel
from gateway.demo.workspace import Workspace

LEARNING = {"trials": "on", "interval_s": 0.05, "idle_s": 2.0}
"""The demo's settings of learning: a run that was given up is over soon, one that waits for a busy
machine is not."""
MINED_WITHIN_S = 10.0
_POLL_S = 0.05
# The draw depends on the conversation: with this name the lesson is not held back. In a real trial
# it is, on a share of the occasions.
_NAME = "demo-third"


def play_learned(
    console: Console, url: str, script: Callable[[ScriptedModel], None], model: str, calls: int
) -> bool:
    """Approve what was mined, run the agent once more, and show both; True if it was given.

    `script` sets the model that answers; `url` is the gateway's, with `/v1`.
    """
    operator = {"x-gateway-key": process_key()}  # the gateway runs in this process
    root = url.removesuffix("/v1")
    with httpx.Client(base_url=root, headers=operator, timeout=30) as api:
        lessons = _mined(api)
        for lesson in lessons:
            name = lesson["pattern_id"]
            api.patch(f"/api/lessons/{name}", json={"status": "active"}).raise_for_status()
    scripted = ScriptedModel()
    script(scripted)
    headers = {"x-conversation-id": _NAME}
    turns: list[Turn] = []
    with (
        tempfile.TemporaryDirectory(prefix="gateway-demo-repo-") as folder,
        OpenAI(base_url=url, api_key="not-needed", default_headers=headers) as client,
    ):
        outcome = run_agent(
            client, Workspace(Path(folder)), model=model, max_calls=calls, on_turn=turns.append
        )
    console.print(_panel(lessons, outcome))
    return bool(scripted.told) and outcome.answer is not None


def _mined(api: httpx.Client) -> list[dict[str, Any]]:
    """The lessons of the first two runs, as soon as the gateway has read both."""
    deadline, found = time.monotonic() + MINED_WITHIN_S, list[dict[str, Any]]()
    while time.monotonic() < deadline and len({each["source_trace_id"] for each in found}) < 2:
        time.sleep(_POLL_S)
        found = api.get("/api/lessons").json()["lessons"]
    return found


def _panel(lessons: list[dict[str, Any]], outcome: Outcome) -> Panel:
    lines = [Text("Read off the two runs, and approved by the operator:", style="dim")]
    lines += [Text(f"  {lesson['advice']}", style="magenta") for lesson in lessons]
    told = next((n for n, turn in enumerate(outcome.turns, 1) if _has_lesson(turn, lessons)), None)
    lines.append(Text(""))
    if told is None:
        lines.append(Text("The third run was not given the lesson.", style="bold red"))
    else:
        end = "repaired" if outcome.answer is not None else "gave up"
        lines.append(
            Text(
                f"The third run is told at call {told}, right behind its first failing test: "
                f"{end} in {len(outcome.turns)} calls.",
                style="bold green",
            )
        )
    return Panel(Group(*lines), title="3  What was learned", title_align="left")


def _has_lesson(turn: Turn, lessons: list[dict[str, Any]]) -> bool:
    given = turn.headers.get("x-gateway-guidance", "")
    return any(lesson["pattern_id"] in given for lesson in lessons)
