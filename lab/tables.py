"""Tables of figures for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table


def report_console(out: TextIO) -> Console:
    """A console for the tables of a report, 120 columns wide if `out` is no terminal."""
    return Console(file=out, width=None if out.isatty() else 120, highlight=False)


def report_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """A table with its title above, and columns on the left and on the right."""
    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table
