"""Templates: everything that is put into them is escaped, and made harmless to look at."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gateway import figures
from gateway.dashboard.files import version
from gateway.visible import one_line, visible

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent / "templates"


async def render(template: str, **values: Any) -> bytes:
    """The page as UTF-8; made on a thread, because a long one would hold up the loop."""
    return await asyncio.to_thread(_render, template, values)


def _render(template: str, values: dict[str, Any]) -> bytes:
    return environment().get_template(template).render(values).encode("utf-8", "replace")


@cache
def environment() -> Environment:
    """The templates, compiled once; imported when the first page is asked for."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    for name in (
        "money",
        "count",
        "counted",
        "percent",
        "budget_share",
        "points",
        "score",
        "change",
        "seconds",
        "milliseconds",
        "ago",
        "iso",
        "clock",
        "size",
    ):
        made.filters[name] = getattr(figures, name)
    made.filters["one_line"] = one_line
    made.globals["assets"] = version()
    return made


def _harmless(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
