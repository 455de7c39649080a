"""`gateway runs usage | export`, and the tree of a run: who spent what, in a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from gateway.backends import Stores
from gateway.commands.store import add_verb, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.reporting.run_exports import FORMATS, group_lines
from gateway.stores.queries import RunFilter
from gateway.stores.usage import GROUPS, AttributionStore, Sums, Tree
from gateway.text import formatting
from gateway.text.sanitize import one_line

Filter = Callable[[argparse.Namespace], RunFilter]


def add_verbs(verbs: Any, add_filters: Callable[[Any], None], chosen: Filter) -> None:
    """Declare the verbs; `chosen` reads the filters that `add_filters` declares."""

    async def usage(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
        await _usage(stores, chosen(args), args)

    async def export(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
        await _export(stores, chosen(args), args)

    sums = add_verb(
        verbs, "usage", "cost and tokens by tag, key, agent or day", usage, existing=True
    )
    sums.add_argument("--by", default="key", help=f"tag:NAME, {', '.join(GROUPS)}")
    sums.add_argument("--csv", action="store_true", help="CSV on stdout")
    add_filters(sums)
    lines = add_verb(verbs, "export", "write runs to stdout, one a line", export, existing=True)
    lines.add_argument("--format", choices=FORMATS, default="jsonl", help="default: jsonl")
    lines.add_argument("--no-content", action="store_true", help="without the texts of steps")
    add_filters(lines)


async def _usage(stores: Stores, runs: RunFilter, args: argparse.Namespace) -> None:
    from gateway.api.attribution import sums_view

    groups = await attribution(stores).groups(runs, args.by)
    if args.csv:
        _write(group_lines(args.by, groups))
    elif args.json:
        for group in groups:
            shown = {"value": group.value, "sums": sums_view(group.sums)}
            say(orjson.dumps(shown).decode())
    else:
        table = _table(args.by)
        for group in groups:
            table.add_row(one_line(group.value, 60) or "(none)", *_cells(group.sums))
        Console(width=max(Console().width, 110)).print(table)


async def _export(stores: Stores, runs: RunFilter, args: argparse.Namespace) -> None:
    from gateway.api.attribution import exported

    content = not args.no_content and args.format != "csv"
    traces = stores.runs.export_runs(runs, content=content)
    async for lines in exported(traces, args.format):
        _write(lines)


async def find_tree(stores: Stores, conversation_id: str) -> Tree:
    """The tree of a conversation. Raises: ConfigError."""
    tree = await attribution(stores).tree(conversation_id, tenant=None)
    if tree is None:
        raise ConfigError(f"there is no conversation {conversation_id!r}")
    return tree


def print_tree(tree: Tree, *, as_json: bool) -> None:
    """The conversations of a tree, sub-agents below their parents, and their sum."""
    from gateway.api.attribution import tree_view

    if as_json:
        say(orjson.dumps(tree_view(tree)).decode())
        return
    parents = {node.id: node.parent_id for node in tree.nodes}
    table = _table("conversation")
    for node in tree.nodes:
        depth, above = 0, node.parent_id
        while above in parents and depth < len(parents):
            depth, above = depth + 1, parents[above]
        name = f"{'  ' * depth}{node.id}  {one_line(node.external_key or '', 30)}"
        table.add_row(name.rstrip(), *_cells(node.sums))
    table.add_row("all together", *_cells(tree.total))
    Console(width=max(Console().width, 130)).print(table)


def attribution(stores: Stores) -> AttributionStore:
    """The store's sums. Raises: ConfigError for a store without."""
    if stores.attribution is None:
        raise ConfigError("this store cannot sum up runs")
    return stores.attribution


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in ("runs", "calls", "tokens", "cached", "cost", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(sums: Sums) -> tuple[str, ...]:
    return (
        str(sums.runs),
        str(sums.calls),
        formatting.about(formatting.count(sums.tokens), sums.estimated_tokens),
        formatting.percent(sums.cached_share),
        formatting.about(formatting.money(sums.cost_usd), sums.estimated_usd),
        formatting.money(sums.saved_usd),
    )


def _write(lines: bytes) -> None:
    sys.stdout.write(lines.decode("utf-8", "replace"))
    sys.stdout.flush()
