"""The dashboard's templates, and the files that its pages load."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.stores.totals import SEVERITY_WORDS
from gateway.text.page import page_templates, style_sheet

if TYPE_CHECKING:
    from jinja2 import Environment

MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOLDER = Path(__file__).parent


async def render(template: str, **values: Any) -> bytes:
    """The page as UTF-8; rendered on a thread, because a long page would hold up the event loop."""
    return await asyncio.to_thread(_render, template, values)


def _render(template: str, values: dict[str, Any]) -> bytes:
    return _environment().get_template(template).render(values).encode("utf-8", "replace")


@cache
def _environment() -> Environment:
    """The templates, compiled once, when the first page is requested."""
    made = page_templates(_FOLDER / "templates")
    made.globals["assets"] = assets_version()
    made.globals["severity_words"] = SEVERITY_WORDS
    return made


@cache
def static_files() -> dict[str, bytes]:
    """Style sheet, scripts and icon by name, read once."""
    found = {p.name: p.read_bytes() for p in (_FOLDER / "static").iterdir()}
    return {name: body for name, body in found.items() if Path(name).suffix in MEDIA_TYPES} | {
        "app.css": style_sheet().encode()
    }


@cache
def assets_version() -> str:
    """A digest over all static files, which is part of their addresses."""
    joined = b"".join(body for _, body in sorted(static_files().items()))
    return hashlib.sha256(joined).hexdigest()[:12]
