"""The demo on the terminal: the run as it happens, a timeline, and the effect of steering. At the
end it shows the lessons that were mined from its runs, and a third run that is given them."""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from openai import OpenAI
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gateway.app import build_app
from gateway.auth.authenticator import process_key
from gateway.config import LoggingSettings, settings_from_dict
from gateway.demo.model import Outcome, Provider, ScriptedModel, Turn, Workspace, run_agent
from gateway.observability.logging import configure_logging
from gateway.server import in_thread, uvicorn_config
from gateway.steering.guidance.render import ADVISORY
from gateway.steering.transcript.content import FRAME_CLOSE
from gateway.text.plots import STATE_COLOURS, column
from gateway.upstream.prices import capabilities

# A run that was given up is over soon, one that waits for a busy machine is not.
LEARNING = {"trials": "on", "interval_s": 0.05, "idle_s": 2.0}
MINED_WITHIN_S = 10.0
_POLL_S = 0.05
# The draw depends on the conversation: with this name the lesson is not held back. In a real trial
# it is, on a share of the occasions.
_NAME = "demo-third"
REQUESTED = "gpt-4o"
ROUTING = {"FAST": "gpt-4o-mini", "SLOW": "gpt-4.1"}
MAX_CALLS = 30
STOP_S = 120.0
WIDTH = 80  # columns that every line fits into; a wider terminal is not filled


def run_demo(console: Console | None = None, *, database: Path | None = None) -> bool:
    """Run the agent without and with steering, and once more with what was learned; True if it
    succeeds in all but the first. database: where the runs are recorded; None: nowhere that
    stays."""
    # A fixed width if the output is not a terminal.
    console = console or Console(highlight=False, width=None if os.isatty(1) else WIDTH)
    console.width = min(console.width, WIDTH)
    console.print(_opening())
    with _demo_gateway(database) as (provider, url):
        console.rule("[bold]1  The agent alone[/], steering off", align="left", style="dim")
        alone = _shown_run(console, provider, url, "off")
        console.rule("[bold]2  The same agent, steered[/]", align="left", style="dim")
        steered = _shown_run(console, provider, url, "on")
        advice = provider.model.advice
        console.print(_timeline(steered))
        console.print(_comparison(alone, steered))
        lessons = _approved_lessons(url.removesuffix("/v1"))
        learned = _run_agent(provider, url, {"x-conversation-id": _NAME}, lambda turn: None)
        console.print(_lessons_panel(lessons, learned))
    console.print(_closing(advice))
    repaired = steered.answer is not None and learned.answer is not None
    return alone.answer is None and repaired and bool(provider.model.lessons)


@contextmanager
def _demo_gateway(database: Path | None) -> Iterator[tuple[Provider, str]]:
    """A scripted provider and a gateway in front of it, on loopback, in a temporary folder."""
    configure_logging(LoggingSettings(level="error"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-demo-")))
        provider = stack.enter_context(Provider())
        settings = settings_from_dict(
            {
                "default_upstream": {"api_base": provider.base_url},
                "model_routing": ROUTING,
                # The demo must not depend on how busy the machine is.
                "steering": {"deadline_ms": 10_000},
                "storage": {"path": str(database or folder / "demo.db")},
                "server": {"drain_s": 1},
                "learning": LEARNING,
            }
        )
        app = build_app(settings)
        server = uvicorn.Server(uvicorn_config(app, settings))
        url = stack.enter_context(in_thread(server, STOP_S, "the gateway did not start"))
        yield provider, f"{url}/v1"


def _run_agent(
    provider: Provider, url: str, headers: dict[str, str], on_turn: Callable[[Turn], None]
) -> Outcome:
    """One run of the agent on a fresh copy of its repository, against a fresh model."""
    provider.model = ScriptedModel()
    with (
        tempfile.TemporaryDirectory(prefix="gateway-demo-repo-") as folder,
        OpenAI(base_url=url, api_key="not-needed", default_headers=headers) as client,
    ):
        workspace = Workspace(Path(folder))
        return run_agent(client, workspace, model=REQUESTED, max_calls=MAX_CALLS, on_turn=on_turn)


def _shown_run(console: Console, provider: Provider, url: str, mode: str) -> Outcome:
    columns = f"{'state':<7}{'difficulty':<12}{'model':<12}{'what the agent did':<22}fired"
    console.print(Text(f"call  {columns}", style="dim"))
    numbers = itertools.count(1)

    def show(turn: Turn) -> None:
        console.print(_line(next(numbers), turn))
        for source in _sources(turn):
            console.print(Text(f"      └ guidance: {source}", style="magenta"))

    outcome = _run_agent(provider, url, {"x-gateway-mode": mode}, show)
    end = Text(f"  gave up after {MAX_CALLS} calls, the test still fails\n", "bold red")
    if outcome.answer is not None:
        end = Text(f"  done: {outcome.answer}\n", "bold green")
    console.print(end)
    return outcome


def _approved_lessons(root: str) -> list[dict[str, Any]]:
    """The lessons of the first two runs, approved as soon as the gateway has read both."""
    deadline, found = time.monotonic() + MINED_WITHIN_S, list[dict[str, Any]]()
    operator = {"x-gateway-key": process_key()}  # the gateway runs in this process
    with httpx.Client(base_url=root, headers=operator, timeout=30) as api:
        while time.monotonic() < deadline and len({each["source_trace_id"] for each in found}) < 2:
            time.sleep(_POLL_S)
            found = api.get("/api/lessons").json()["lessons"]
        for lesson in found:
            name = lesson["pattern_id"]
            api.patch(f"/api/lessons/{name}", json={"status": "active"}).raise_for_status()
    return found


def _lessons_panel(lessons: list[dict[str, Any]], outcome: Outcome) -> Panel:
    lines = [Text("Read off the two runs, and approved by the operator:", style="dim")]
    lines += [Text(f"  {lesson['advice']}", style="magenta") for lesson in lessons]
    given = [turn.headers.get("x-gateway-guidance", "") for turn in outcome.turns]
    names = [lesson["pattern_id"] for lesson in lessons]
    first = next((n for n, text in enumerate(given, 1) if any(x in text for x in names)), None)
    end = Text("The third run was not given the lesson.", style="bold red")
    if first is not None:
        end = Text(
            f"The third run gets it at call {first}, right behind its first failing test: "
            f"{'repaired' if outcome.answer is not None else 'gave up'} in "
            f"{len(outcome.turns)} calls.",
            style="bold green",
        )
    return Panel(Group(*lines, Text(""), end), title="3  What was learned", title_align="left")


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
    headers = turn.headers
    state = headers.get("x-gateway-state", "-")
    model = headers.get("x-gateway-model", "-")
    text = Text(f"{number:>4}  ")
    text.append(f"{state:<7}", STATE_COLOURS.get(state, ""))
    text.append(_meter(headers.get("x-gateway-difficulty")))
    text.append(f"{model:<12}", "" if model == REQUESTED else "bold")
    text.append("✗ " if turn.failed else "  ", "red")
    text.append(f"{turn.action.replace('_file ', ' ') or 'final answer':<20}")
    # The first two monitors by name, the others as a number: a line has 80 columns.
    monitors = headers.get("x-gateway-monitors", "").split(",")
    more = f" +{len(monitors) - 2}" if len(monitors) > 2 else ""
    text.append(" ".join(monitors[:2]) + more, "yellow")
    return text


def _meter(difficulty: str | None) -> Text:
    if difficulty is None:
        return Text(f"{'':<12}")
    value = float(difficulty)
    filled = round(value * 6)
    style = "green" if value < 0.2 else "red" if value > 0.6 else "cyan"
    bar = Text("▇" * filled, style)
    bar.append("·" * (6 - filled), "dim")
    bar.append(f" {value:.2f} ", "dim")
    return bar


def _sources(turn: Turn) -> list[str]:
    """The guidance of this call: universal rules are counted, other texts are named."""
    label = turn.headers.get("x-gateway-guidance", "")
    items = [item for item in label.split(",") if item]
    rules = [item for item in items if item.startswith("e3:")]
    named = [item.partition(":")[::2] for item in items if not item.startswith("e3:")]
    kinds = {"monitor": "monitor text for", "e2": "failure pattern", "e1": "lesson of a past run"}
    lines = [f"{len(rules)} universal rules, repeated in every later call"] if rules else []
    return lines + [f"{kinds.get(kind, kind)} {name}" for kind, name in named]


def _timeline(outcome: Outcome) -> Panel:
    """Difficulty by call in the colours of the states, with monitors, guidance and models."""
    rows = {name: Text() for name in ("difficulty", "state", "fired", "guidance", "model")}
    short = {REQUESTED: "█", ROUTING["FAST"]: "▁", ROUTING["SLOW"]: "▲"}
    for turn in outcome.turns:
        headers = turn.headers
        state = headers.get("x-gateway-state", "")
        style = STATE_COLOURS.get(state, "")
        level = column(float(headers.get("x-gateway-difficulty", 0)))
        rows["difficulty"].append(level * 2 + " ", style)
        rows["state"].append(f"{state[:2]:<3}", style)
        rows["fired"].append("▮▮ " if headers.get("x-gateway-monitors") else "   ", "yellow")
        texts = [s for s in _sources(turn) if "universal" not in s]
        rows["guidance"].append("▼  " if texts else "   ", "magenta")
        rows["model"].append(short.get(headers.get("x-gateway-model", ""), "?") * 2 + " ", style)
    grid = Table.grid(padding=(0, 2))
    for name, row in rows.items():
        grid.add_row(Text(name, style="dim"), row)
    legend = Text(f"model: ▁ {ROUTING['FAST']}  █ {REQUESTED}  ▲ {ROUTING['SLOW']}", style="dim")
    return Panel(Group(grid, legend), title="the steered run, call by call", title_align="left")


def _comparison(alone: Outcome, steered: Outcome) -> Table:
    table = Table(title="the effect of steering", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "alone", "steered"):
        table.add_column(heading, justify="right" if heading else "left")
    runs = (alone, steered)
    table.add_row("result", *("gave up" if r.answer is None else "repaired" for r in runs))
    table.add_row("model calls", *(str(len(r.turns)) for r in runs))
    tokens = [sum(t.prompt_tokens + t.completion_tokens for t in r.turns) for r in runs]
    table.add_row("tokens", *(f"{n:,}" for n in tokens))
    table.add_row("cost at list prices", *(_cost(r) for r in runs))
    table.add_row(f"  if every call went to {REQUESTED}", *(_cost(r, REQUESTED) for r in runs))
    return table


def _cost(outcome: Outcome, model: str | None = None) -> str:
    """US dollars at LiteLLM's packaged prices; `unknown` if a price is missing."""
    total = 0.0
    for turn in outcome.turns:
        usage = {"prompt_tokens": turn.prompt_tokens, "completion_tokens": turn.completion_tokens}
        name = model or turn.headers.get("x-gateway-model", REQUESTED)
        info = capabilities(name)
        cost = info.cost(usage) if info is not None else None
        if cost is None:
            return "unknown"
        total += cost
    return f"${total:.4f}"


def _closing(advice: str) -> Panel:
    # The first text of the guidance block, without its frame.
    text = advice.partition(ADVISORY)[2].replace(FRAME_CLOSE, "").strip().split("\n\n")[0]
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
