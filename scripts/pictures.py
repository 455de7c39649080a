"""Make the pictures of docs/pictures: the demo in a terminal, and its run in the dashboard.

    python -m scripts.pictures            # `make pictures`
    python -m scripts.pictures HOME       # the sessions below a home directory, as history.svg

A terminal's picture is text as SVG, made by rich; the page is a screenshot of a real Chromium,
which is found by name or named by CHROMIUM. They show the run of `gateway demo`, whose model is
scripted. history.svg shows public logs that are not in the repository (docs/history.md).
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from gateway.app import build_app
from gateway.config import settings_from_dict
from gateway.core.decision_settings import Policy
from gateway.features.demo.show import WIDTH, run_demo
from gateway.features.history.find import at_home
from gateway.features.history.projects import with_projects
from gateway.features.history.reading import SessionReading, read_all
from gateway.features.history.screen import print_screen
from gateway.features.history.sub_agent_orders import with_orders
from gateway.features.history.summary import summarise
from gateway.server import uvicorn_config
from steering_gateway_testing import AppServer
from steering_gateway_testing.browser import browser, chromium

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
PAGE_WIDTH, PAGE_HEIGHT = 1180, 1010
HISTORY_WIDTH = 118


class SecondHalf(Console):
    """Records what is printed from the steered run on: both runs would be a long picture."""

    def rule(self, title: Any = "", **options: Any) -> None:
        """Draw a line; that of the second run begins the record anew."""
        if "2  " in str(title):
            self.export_text(clear=True)
        super().rule(title, **options)


def main() -> int:
    """Write the pictures; those of pages are left as they are where there is no browser."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:]:
        history(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="gateway-pictures-") as folder:
        database = Path(folder) / "demo.db"
        console = SecondHalf(
            record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, highlight=False
        )
        if not run_demo(console, database=database):
            print("the demo did not end as it should", file=sys.stderr)
            return 1
        save(console, "demo")
        if chromium() is None:
            print("no Chromium: the pictures of pages are left as they are", file=sys.stderr)
            return 0
        asyncio.run(_page(database, Path(folder)))
    for file in sorted(PICTURES.iterdir()):
        print(f"{file.relative_to(PICTURES.parents[1])}  {file.stat().st_size // 1000} kB")
    return 0


def history(home: Path) -> None:
    """The first screen of `gateway history`, for the sessions below a home directory."""
    readings: list[SessionReading] = []
    for each in read_all(at_home(home), Policy(), err=io.StringIO(), jobs=1):
        readings += each.sessions
    options: dict[str, Any] = {"force_terminal": True, "highlight": False}
    console = Console(record=True, file=io.StringIO(), width=HISTORY_WIDTH, **options)
    print_screen(summarise(with_projects(with_orders(readings))), console, {})
    save(console, "history")


def save(console: Console, name: str) -> None:
    """Write what a console has recorded as a picture."""
    # The template loads fonts from a web server; a reader's own are as good.
    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    picture = console.export_svg(
        title=f"gateway {name}", code_format=template, unique_id=name, font_aspect_ratio=0.61
    )
    (PICTURES / f"{name}.svg").write_text(picture.replace("Fira Code", "monospace"), "utf-8")


async def _page(database: Path, folder: Path) -> None:
    """Screenshots of the steered run's page and of its session's, served from the demo's own
    database."""
    settings = settings_from_dict({"storage": {"path": str(database)}, "server": {"drain_s": 1}})
    app = build_app(settings)
    with AppServer(app, config=uvicorn_config(app, settings)) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            runs = (await client.get("/api/runs")).json()["runs"]
        *_, run = [run for run in runs if run["mode"] == "on"]  # newest first
        async with browser(folder / "browser") as tab:
            await tab.look(width=PAGE_WIDTH, height=PAGE_HEIGHT)
            await tab.open(f"{server.url}/dashboard/runs/{run['id']}")
            await tab.picture(PICTURES / "run.png")
            await tab.open(f"{server.url}/dashboard/sessions/{run['session_id']}")
            await tab.picture(PICTURES / "session.png")


if __name__ == "__main__":
    raise SystemExit(main())
