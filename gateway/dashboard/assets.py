"""The dashboard's own files; nothing is fetched from anywhere else."""

from __future__ import annotations

from pathlib import Path

from gateway.api.params import Param
from gateway.dashboard.files import MEDIA, files
from gateway.dashboard.pages import Page, Visit
from gateway.errors import NotFound

PARAMS = (Param(name="v", description="The version of the files."),)
# The address changes with the content, so that it may be kept for ever.
_KEEP = ((b"cache-control", b"public, max-age=31536000, immutable"),)


async def show(visit: Visit) -> Page:
    """One file."""
    name = visit.scope["path_params"]["name"]
    body = files().get(name)
    if body is None:
        raise NotFound(f"there is no file {name[:80]!r}")
    return Page(body=body, media=MEDIA[Path(name).suffix], headers=_KEEP)
