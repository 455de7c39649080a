"""Make the pictures of docs/pictures: the demo in a terminal, and its run in the dashboard.

    python -m scripts.pictures            # `make pictures`

The terminal picture is text as SVG, made by rich; the page is a screenshot of a real Chromium,
which is found by name or named by CHROMIUM. Both show the run of `gateway demo`, whose model is
scripted.
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
from gateway.demo import run_demo
from gateway.demo.show import WIDTH
from gateway.server import uvicorn_config
from steering_gateway_testing import AppServer
from tests.dashboard.browser import browser, chromium

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
PAGE_WIDTH, PAGE_HEIGHT = 1180, 1010


class SecondHalf(Console):
    """Records what is printed from the steered run on: both runs would be a long picture."""

    def rule(self, title: Any = "", **options: Any) -> None:
        """Draw a line; that of the second run begins the record anew."""
        if "2  " in str(title):
            self.export_text(clear=True)
        super().rule(title, **options)


def main() -> int:
    """Write both pictures; the page's is left as it is where there is no browser."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gateway-pictures-") as folder:
        database = Path(folder) / "demo.db"
        console = SecondHalf(
            record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, highlight=False
        )
        if not run_demo(console, database=database):
            print("the demo did not end as it should", file=sys.stderr)
            return 1
        # The template loads fonts from a web server; a reader's own are as good.
        template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        picture = console.export_svg(
            title="gateway demo", code_format=template, unique_id="demo", font_aspect_ratio=0.61
        )
        (PICTURES / "demo.svg").write_text(picture.replace("Fira Code", "monospace"), "utf-8")
        if chromium() is None:
            print("no Chromium: docs/pictures/run.png is left as it is", file=sys.stderr)
            return 0
        asyncio.run(_page(database, Path(folder)))
    for file in sorted(PICTURES.iterdir()):
        print(f"{file.relative_to(PICTURES.parents[1])}  {file.stat().st_size // 1000} kB")
    return 0


async def _page(database: Path, folder: Path) -> None:
    """A screenshot of the steered run's page, served from the demo's own database."""
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


if __name__ == "__main__":
    raise SystemExit(main())
