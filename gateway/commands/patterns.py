"""`gateway patterns`: the pattern library from the command line, while a gateway runs or not."""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import to_builtins

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import (
    answer,
    found_storage,
    reported,
    run_on,
    say,
)
from gateway.config import load_settings
from gateway.core.pattern import Query, Tier
from gateway.embedding import EmbeddingError, open_embedder
from gateway.errors import BadRequest, ConfigError
from gateway.library import PatternLibrary
from gateway.offline.recordings import file_lines
from gateway.steering.guidance.codec import failure_label, read_line
from gateway.stores.patterns import PatternFilter
from gateway.text.formatting import progress_bar
from gateway.text.page import rendered
from gateway.text.sanitize import visible

_PAGE = 200
_REASONS = 20  # most refused lines that are printed


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    does = {
        "list": _list,
        "export": _export,
        "add": _add,
        "import": _import,
        "search": _search,
        "delete": _delete,
        "reindex": _reindex,
    }
    verbs = {f"patterns {name}": partial(_run, handler) for name, handler in does.items()}
    declare(commands, __name__, verbs, count=_count)


async def _run(handler: Any, args: Namespace) -> int:
    with reported(EmbeddingError, BadRequest):
        args.named_tenant = args.tenant is not None
        args.tenant = args.tenant or DEFAULT_TENANT
        if handler is _add:  # before a database is created for it
            args.pattern = read_line(args.pattern, tenant=args.tenant)
        elif handler is _import:
            args.lines = file_lines(args.file)
        settings = load_settings(args.config)
        creates = handler in (_add, _import)
        if not creates:
            settings = replace(settings, storage=found_storage(settings.storage))

        async def on_library(stores: Stores, *_: object) -> int | None:
            library = await PatternLibrary(
                stores.patterns,
                await open_embedder(settings.embedding),
                settings.etraces,
                masks_secrets=settings.storage.mask_secrets,
            ).prepare()
            found: int | None = await handler(library, args)
            return found

        return await run_on(on_library, settings, args, creates=creates, vectors=True)


async def _list(library: PatternLibrary, args: Namespace) -> None:
    cursor: str | None = None
    wanted = _filter(args)
    while True:
        page = await library.store.list_patterns(wanted, limit=_PAGE, cursor=cursor)
        for stored in page.patterns:
            pattern = stored.pattern
            injected = stored.injected
            counts = {"counts": {"injected": injected}, "indexed": stored.indexed}
            label = pattern.failure_type or "any"
            about = f"{pattern.tier.value}  {label:<12} {injected:>6} injected"
            answer(args, to_builtins(pattern) | counts, f"{about}  {pattern.pattern_id}")
        cursor = page.next_cursor
        if cursor is None:
            return


async def _export(library: PatternLibrary, args: Namespace) -> None:
    async for line in library.export_lines(_filter(args)):
        say(line)


async def _add(library: PatternLibrary, args: Namespace) -> None:
    ((added, name),) = await library.add([args.pattern])
    answer(args, {"result": added.value, "pattern_id": name}, f"{added.value}  {name}")


async def _import(library: PatternLibrary, args: Namespace) -> int:
    with progress_bar(sys.stderr) as bar:
        task = bar.add_task("importing", total=len(args.lines))
        report = await library.import_lines(
            args.lines,
            args.tenant,
            lambda count: bar.update(task, completed=count),
            names_tenant=not args.named_tenant,
            keep_going=True,
        )
    counts = {outcome.value: number for outcome, number in report.counts.items()}
    counts["refused"] = len(report.refused)
    answer(args, counts, ", ".join(f"{number} {name}" for name, number in counts.items()))
    for reason in report.refused[:_REASONS]:
        sys.stderr.write(f"{args.file}: {visible(reason)}\n")
    if more := len(report.refused[_REASONS:]):
        sys.stderr.write(f"{args.file}: and {more} more lines\n")
    if report.refused:
        return 1
    return 0


async def _search(library: PatternLibrary, args: Namespace) -> None:
    failure = failure_label(args.failure_type)
    query = Query(tier=Tier(args.tier), text=args.text, top_k=args.limit, failure_type=failure)
    gates = library.gates
    if query.failure_type or gates.e2_untyped is None:
        gate = gates.e2
    else:
        gate = gates.e2_untyped
    if query.tier is Tier.E1:
        gate = gates.e1
    matches = (await library.look_up(query, args.tenant))[: args.limit]
    if not args.json:
        shown = {"matches": matches, "gate": gate}
        return say(rendered(__package__, "patterns_found.txt", shown).rstrip())
    for match in matches:
        found = {"similarity": round(match.similarity, 4), "pattern_id": match.pattern.pattern_id}
        say(json.dumps({**found, "fields": match.pattern.fields}))


async def _delete(library: PatternLibrary, args: Namespace) -> None:
    if not await library.store.delete(args.tenant, args.pattern_id):
        raise ConfigError(f"no pattern {args.pattern_id!r}")
    answer(args, {"deleted": args.pattern_id}, "deleted")


async def _reindex(library: PatternLibrary, args: Namespace) -> None:
    with progress_bar(sys.stderr) as bar:
        task = bar.add_task("embedding", total=None)
        done = await library.reindex(lambda count: bar.update(task, completed=count))
    answer(args, {"embedded": done}, f"{done} patterns embedded")


def _filter(args: Namespace) -> PatternFilter:
    tier = None
    if args.tier:
        tier = Tier(args.tier)
    failure = failure_label(args.failure_type)
    return PatternFilter(tenant=args.tenant, tier=tier, failure_type=failure)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
