"""The demo on the terminal: one agent without and with steering, what the gateway said and what
came of it."""

import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from textwrap import fill

import httpx
import uvicorn
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.app import build_app
from gateway.config import LoggingSettings, settings_from_dict
from gateway.core.guidance_text import ADVISORY, FRAME_CLOSE
from gateway.features.demo.model import ScriptedModel, Turn, provider, run_agent
from gateway.observability.logging import configure_logging
from gateway.server import in_thread, uvicorn_config

MODEL = "gpt-4o"
# US dollars a token of that model. Source: the list in LiteLLM 1.110.2.
PRICES = {"prompt_tokens": 2.5e-6, "completion_tokens": 10e-6}
SETTINGS = {
    # The demo must not depend on how busy the machine is.
    "steering": {"deadline_ms": 10_000},
    "server": {"drain_s": 1},
}
STOP_S = 120.0  # longest wait for the gateway of the demo to start or stop
MAX_CALLS = 20
WIDTH = 80  # columns that every line fits into; a wider terminal is not filled
_TRIES = 2  # failures after which the next one is an alarm


def run_demo(console: Console | None = None, *, database: Path | None) -> bool:
    """Run the agent without and with steering; True if it succeeds in the second alone. database:
    where the runs are recorded; None: nowhere that stays."""
    # A fixed width if the output is not a terminal.
    console = console or Console(highlight=False, width=None if os.isatty(1) else WIDTH)
    console.width = min(console.width, WIDTH)
    console.print(
        "An agent repairs a small repository through a gateway, twice. Agent, tests and\n"
        "gateway are real; [bold]the model is scripted[/]: it edits and tests one line again and\n"
        "again, until a text of the gateway says what to do instead, and then does that."
    )
    with _Demo(database) as demo:
        console.rule("[bold]1  The agent alone[/], steering off", align="left", style="dim")
        alone = demo.shown(console, "off")
        console.rule("[bold]2  The same agent, steered[/]", align="left", style="dim")
        steered = demo.shown(console, "on")
    console.print(_comparison(alone, steered))
    console.print(
        "\nwith your own agent: [bold]gateway wrap -- claude[/]   (or codex, opencode, ...)"
    )
    console.print(
        "what steering is worth on real models is counted in docs/evidence.md", style="dim"
    )
    return alone[-1].answer is None and steered[-1].answer is not None


class _Demo(ExitStack):
    """A scripted provider and a gateway in front of it, on loopback, in a temporary folder."""

    def __init__(self, database: Path | None):
        super().__init__()
        configure_logging(LoggingSettings(level="error"))
        folder = self.enter_context(tempfile.TemporaryDirectory(prefix="gateway-demo-"))
        base = self.enter_context(provider(lambda: self._model))
        storage = {"path": str(database or Path(folder) / "demo.db")}
        upstream = {"default_upstream": {"api_base": base}, "storage": storage}
        settings = settings_from_dict({**SETTINGS, **upstream})
        app = build_app(settings)
        server = uvicorn.Server(uvicorn_config(app, settings))
        url = self.enter_context(in_thread(server, STOP_S, app.runtime))
        self._client = self.enter_context(httpx.Client(base_url=url, timeout=STOP_S))

    def shown(self, console: Console, mode: str) -> list[Turn]:
        """A run of the agent on a fresh copy of its repository, against a fresh model; printed when
        it has ended."""
        self._model = ScriptedModel()
        self._client.headers.update({"x-gateway-mode": mode, "user-agent": "demo"})
        run = []
        notes = {}
        known = 0
        with tempfile.TemporaryDirectory(prefix="gateway-demo-repo-") as folder:
            for turn in run_agent(self._client, Path(folder), model=MODEL, max_calls=MAX_CALLS):
                run.append(turn)
                blocks = self._model.texts[known:]
                known += len(blocks)
                if blocks:
                    notes[len(run)] = self._note(turn, blocks[0])
        _print_calls(console, run, notes)
        return run

    def _note(self, turn: Turn, block: str) -> Text:
        """The gateway's words of a call: the alarm, with its object and count, and the text."""
        parts = block.partition(FRAME_CLOSE)[0].replace(ADVISORY, "").strip().split("\n\n")
        if not turn.headers.get("x-gateway-monitors"):
            return Text(f"  text  {len(parts)} universal rules, as in every run", "dim")
        alarm = self._alarm(turn).partition(": ")[0]
        shown = fill(parts[0], WIDTH - 8, subsequent_indent=" " * 8)
        more = "".join(
            f"\n        (and a pattern for it, {part.count(chr(10)) + 1} lines)"
            for part in parts[1:]
        )
        return Text.assemble(
            (f"  alarm {alarm}\n", "yellow"), (f"  text  {shown}", "magenta"), (more, "dim")
        )

    def _alarm(self, turn: Turn) -> str:
        """The newest alarm as the gateway's API states it, once it has recorded that step."""
        run_id = turn.headers["x-gateway-conversation-id"] + ".0"
        ends = time.monotonic() + STOP_S
        while time.monotonic() < ends:
            steps = self._client.get(f"/api/runs/{run_id}").json().get("steps", [])
            for step in steps:
                if step["step_index"] == int(turn.headers["x-gateway-step"]):
                    alarm: str = step["alarms"][0]
                    return alarm
            time.sleep(0.02)
        raise TimeoutError(f"the gateway recorded no step of {run_id}")


def _print_calls(console: Console, run: list[Turn], notes: dict[int, Text]) -> None:
    """A line a call; files read in a row are one, and so are calls that were shown before."""
    often = 1 + _TRIES * bool(notes)  # the steered run shows what the alarm counts
    seen: Counter[tuple[str, str]] = Counter()
    lines: list[tuple[int, str, list[Turn]]] = []  # the first call, the kind, the calls of a line
    last = ""
    for number, turn in enumerate(run, 1):
        kind = turn.action.partition("_")[0]
        seen[turn.action, turn.said] += 1
        if seen[turn.action, turn.said] > often:
            kind = "again"
        if number in notes or kind not in ("read", "again") or kind != last:
            lines.append((number, kind, []))
        lines[-1][2].append(turn)
        last = kind
    for first, kind, turns in lines:
        if first in notes:
            console.print(notes[first])
        span = str(first)
        if turns[1:]:
            span = f"{first}-{first + len(turns) - 1}"
        words = _words(turns[0])
        if kind == "again":
            words = "the same two calls, with the same result each time"
        elif turns[1:]:
            words = "read " + ", ".join(turn.action.split()[1] for turn in turns)
        console.print(Text(f"{span:>6}  {words}"))
    if run[-1].answer is None:
        console.print(
            f"        gave up after {MAX_CALLS} calls, the test still fails", style="bold red"
        )
    console.print()


def _words(turn: Turn) -> str:
    """One call: what the agent did, and what the test or the model then said."""
    shown = [turn.said]
    if turn.action == "run_tests":
        said = turn.result.splitlines()
        shown = [line for line in said if line.startswith(("tax:", "AssertionError", "OK"))]
    what = turn.action.replace("_", " ") or "answers"
    return f"{what.replace(' file', ''):<16}  {'  '.join(dict.fromkeys(shown))}"


def _comparison(*runs: list[Turn]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "alone", "steered"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("result", *("gave up" if r[-1].answer is None else "repaired" for r in runs))
    table.add_row("model calls", *(str(len(run)) for run in runs))
    tokens = [sum(turn.usage["total_tokens"] for turn in run) for run in runs]
    table.add_row("tokens", *(f"{n:,}" for n in tokens))
    table.add_row(f"cost, as {MODEL}", *(f"${_cost(run):.4f}" for run in runs))
    return table


def _cost(run: list[Turn]) -> float:
    return sum(turn.usage[kind] * price for turn in run for kind, price in PRICES.items())
