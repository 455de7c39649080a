"""The dashboard's own script, styles and icon, read once."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"

MEDIA = {".css": "text/css; charset=utf-8", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def files() -> dict[str, bytes]:
    """The files by name."""
    return {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in MEDIA}


@cache
def version() -> str:
    """A digest over all files, for their addresses."""
    joined = b"".join(body for _, body in sorted(files().items()))
    return hashlib.sha256(joined).hexdigest()[:12]
