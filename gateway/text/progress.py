"""The progress bar of long commands: on a terminal's stderr only."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


def progress_bar(err: TextIO) -> Progress:
    """A bar with the work done and the time left; removed at the end, absent in a pipe."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=err),
        disable=not err.isatty(),
        transient=True,
    )
