"""The demo on the terminal: the run as it happens, without and with steering, and the effect of
it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvicorn
from openai import OpenAI
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gateway.app import build_app
from gateway.config import LoggingSettings, settings_from_dict
from gateway.core.guidance_text import ADVISORY, FRAME_CLOSE
from gateway.features.demo.model import ScriptedModel, Turn, provider, run_agent
from gateway.observability.logging import configure_logging
from gateway.server import in_thread, uvicorn_config
from gateway.text.formatting import STATE_COLOURS, print_line
from gateway.upstream.model_costs import capabilities

REQUESTED = "gpt-4o"
SETTINGS = {
    "model_routing": {"FAST": "gpt-4o-mini", "SLOW": "gpt-4.1"},
    # The demo must not depend on how busy the machine is.
    "steering": {"deadline_ms": 10_000},
    "server": {"drain_s": 1},
}
STOP_S = 120.0  # longest wait for the gateway of the demo to start or stop
MAX_CALLS = 30
WIDTH = 80  # columns that every line fits into; a wider terminal is not filled
_KINDS = {"monitor": "monitor text for", "e2": "failure pattern", "e1": "lesson of a past run"}


def run_demo(console: Console | None = None, *, database: Path | None = None) -> bool:
    """Run the agent without and with steering; True if it succeeds in the second alone. database:
    where the runs are recorded; None: nowhere that stays."""
    # A fixed width if the output is not a terminal.
    console = console or Console(highlight=False, width=None if os.isatty(1) else WIDTH)
    console.width = min(console.width, WIDTH)
    console.print(_opening())
    with _Demo(database) as demo:
        console.rule("[bold]1  The agent alone[/], steering off", align="left", style="dim")
        alone = demo.shown(console, "off")
        console.rule("[bold]2  The same agent, steered[/]", align="left", style="dim")
        steered = demo.shown(console, "on")
        advice = demo.model.advice
        console.print(_comparison(alone, steered))
    console.print(_closing(advice))
    return alone[-1].answer is None and steered[-1].answer is not None


class _Demo(ExitStack):
    """A scripted provider and a gateway in front of it, on loopback, in a temporary folder."""

    def __init__(self, database: Path | None) -> None:
        super().__init__()
        configure_logging(LoggingSettings(level="error"))
        folder = self.enter_context(tempfile.TemporaryDirectory(prefix="gateway-demo-"))
        base = self.enter_context(provider(lambda: self.model))
        storage = {"path": str(database or Path(folder) / "demo.db")}
        upstream = {"default_upstream": {"api_base": base}, "storage": storage}
        settings = settings_from_dict({**SETTINGS, **upstream})
        server = uvicorn.Server(uvicorn_config(build_app(settings), settings))
        self._url = self.enter_context(in_thread(server, STOP_S, "the gateway did not start"))

    def turns(self, headers: dict[str, str]) -> Iterator[Turn]:
        """One run of the agent on a fresh copy of its repository, against a fresh model."""
        self.model = ScriptedModel()
        address: Any = {"base_url": f"{self._url}/v1", "api_key": "not-needed"}
        with (
            tempfile.TemporaryDirectory(prefix="gateway-demo-repo-") as folder,
            OpenAI(**address, default_headers=headers) as client,
        ):
            yield from run_agent(client, Path(folder), model=REQUESTED, max_calls=MAX_CALLS)

    def shown(self, console: Console, mode: str) -> list[Turn]:
        """A run, shown call by call."""
        columns = f"{'state':<7}{'difficulty':<12}{'model':<12}{'what the agent did':<22}fired"
        print_line(console, f"call  {columns}", "dim")
        run: list[Turn] = []
        for turn in self.turns({"x-gateway-mode": mode}):
            run.append(turn)
            console.print(_line(len(run), turn))
            for source in _sources(turn):
                print_line(console, f"      └ guidance: {source}", "magenta")
        end = Text(f"  gave up after {MAX_CALLS} calls, the test still fails\n", "bold red")
        if run[-1].answer is not None:
            end = Text(f"  done: {run[-1].answer}\n", "bold green")
        console.print(end)
        return run


def _opening() -> Panel:
    text = Text.assemble(
        "An agent repairs a small repository through the gateway: it reads its way in, then edits "
        "and tests the same line again and again, on a wrong idea of the cause.\n",
        ("The model is scripted", "bold"),
        (": it loops until it hears so, and then it listens. What steering is worth on runs of ")
        + "real models is counted in docs/evidence.md.\n",
        ("The agent is a plain loop on the openai client; only its base URL is set. ", "dim"),
        ("Nothing leaves this machine, and it takes about ten seconds.", "dim"),
    )
    return Panel(text, title="steering gateway", title_align="left", border_style="cyan")


def _line(number: int, turn: Turn) -> Text:
    state, model, difficulty = (
        turn.headers.get(f"x-gateway-{name}", "") for name in ("state", "model", "difficulty")
    )
    text = Text(f"{number:>4}  ")
    text.append(f"{state or '-':<7}", STATE_COLOURS.get(state, ""))
    level = "▇" * round(float(difficulty or 0) * 6)
    text.append(f"{level:·<6} {float(difficulty):.2f} " if difficulty else f"{'':<12}", "dim")
    text.append(f"{model or '-':<12}", "" if model == REQUESTED else "bold")
    text.append("✗ " if turn.failed else "  ", "red")
    text.append(f"{turn.action.replace('_file ', ' ') or 'final answer':<20}")
    # The first two monitors by name, the others as a number: a line has 80 columns.
    monitors = turn.headers.get("x-gateway-monitors", "").split(",")
    more = ""
    if len(monitors) > 2:
        more = f" +{len(monitors) - 2}"
    return text.append(" ".join(monitors[:2]) + more, "yellow")


def _sources(turn: Turn) -> list[str]:
    """The guidance of this call: universal rules are counted, other texts are named."""
    items = list(filter(None, turn.headers.get("x-gateway-guidance", "").split(",")))
    named = [item.partition(":")[::2] for item in items if not item.startswith("e3:")]
    lines = [f"{_KINDS.get(kind, kind)} {name}" for kind, name in named]
    if rules := len(items) - len(named):
        lines.insert(0, f"{rules} universal rules, repeated in every later call")
    return lines


def _comparison(*runs: list[Turn]) -> Table:
    table = Table(title="the effect of steering", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "alone", "steered"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("result", *("gave up" if r[-1].answer is None else "repaired" for r in runs))
    table.add_row("model calls", *(str(len(run)) for run in runs))
    tokens = [sum(turn.usage["total_tokens"] for turn in run) for run in runs]
    table.add_row("tokens", *(f"{n:,}" for n in tokens))
    table.add_row("cost at list prices", *(_cost(run) for run in runs))
    table.add_row(f"  if every call went to {REQUESTED}", *(_cost(run, REQUESTED) for run in runs))
    return table


def _cost(run: list[Turn], model: str = "") -> str:
    """US dollars at LiteLLM's packaged prices; `unknown` if a price is missing."""
    names = [model or turn.headers.get("x-gateway-model", REQUESTED) for turn in run]
    infos = zip(map(capabilities, names), run, strict=True)
    costs = [info.cost(turn.usage) if info is not None else None for info, turn in infos]
    known = [cost for cost in costs if cost is not None]
    if len(known) == len(costs):
        return f"${sum(known):.4f}"
    return "unknown"


def _closing(advice: str) -> Panel:
    # The first text of the block. Only the first block of a run says what such blocks are.
    text = advice.partition(FRAME_CLOSE)[0].replace(ADVISORY, "").strip().split("\n\n")[0]
    agent = ("Your agent:  ", "dim"), ("gateway wrap -- claude", "bold"), "   or codex, ..."
    server = ("a server:    ", "dim"), "gateway serve", ("  (then OPENAI_BASE_URL)", "dim")
    lines = [
        Text("The text that changed the run:", style="dim"),
        Text(text or "(none)", style="magenta"),
        Text(""),
        Text.assemble(*agent),
        Text.assemble(("only watch:  ", "dim"), "gateway wrap --mode shadow -- claude"),
        Text.assemble(*server),
    ]
    return Panel(Group(*lines), border_style="cyan")
