"""`gateway audit` and `migrate`: commands of operators. They work while a
gateway runs on the same store: its next call follows the change."""

import sys
from argparse import Namespace
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from gateway.backends import Stores, copy_to_server
from gateway.commands.declared import declare
from gateway.commands.store import (
    answer,
    connect,
    reported,
    require_records,
    say,
)
from gateway.config import Secret, Settings, load_settings
from gateway.errors import BadRequest, ConfigError
from gateway.text.formatting import clock, progress_bar
from gateway.text.sanitize import one_line


def add_parser(commands: Any) -> None:
    """Declare the commands."""
    declare(commands, __name__, {"audit": _audit, "migrate": _migrate})


async def _audit(stores: Stores, _settings: Settings, args: Namespace) -> None:
    from gateway.api.audit import AuditParameters, act_lines, acts_of
    from gateway.api.params import read_parameters

    known = vars(args)
    chosen = {name: known[name] for name in AuditParameters.model_fields if known.get(name)}
    with reported(BadRequest):
        values = dict(read_parameters(AuditParameters, urlencode(chosen).encode()))
    if args.csv or args.json:
        async for lines in act_lines(stores.changes, values, "csv" if args.csv else "jsonl"):
            sys.stdout.write(lines.decode())
        return
    for act in (await acts_of(stores.changes, values))[0]:
        words = (act[name] for name in ("kind", "act", "subject", "author", "reason"))
        say(f"{clock(act['at'])}  {one_line('  '.join(filter(None, words)), 160)}")


async def _migrate(args: Namespace) -> None:
    settings = load_settings(args.config)
    if args.to is not None:
        await _copy_database(settings, args)
        return
    await connect(settings)
    place = settings.storage.place
    answer(args, {"path": place, "ok": True}, f"{place} is up to date")


async def _copy_database(settings: Settings, args: Namespace) -> None:
    """Copy all rows; the file stays as it is."""
    try:
        target = replace(settings.storage, url=Secret(args.to), listen_url=None)
    except ValueError as exc:
        raise ConfigError(f"--to: {str(exc).removeprefix('url: ')}") from exc
    source = replace(target, url=None)
    with reported(), progress_bar(sys.stderr) as bar:
        require_records(source)
        task = bar.add_task("rows", total=None)
        copied = await copy_to_server(
            source,
            target,
            lambda done, total: bar.update(task, completed=done, total=total),
            vectors=settings.etraces.enabled,
        )
    answer(
        args,
        {"path": target.place, "ok": True, "rows": copied},
        f"{sum(copied.values())} rows of {source.path} are in {target.place} now; set storage.url "
        "to it",
    )
