"""`gateway backup` and `gateway restore`: everything that a gateway has stored, as one file."""

import asyncio
import gzip
import os
import re
import tarfile
import zlib
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, reported, run_on
from gateway.config import Settings, load_settings
from gateway.config.storage import MOVES, StorageSettings
from gateway.errors import BadRequest, ConfigError, in_words
from gateway.stores.protocols import StoreReplaced

# The folder in a backup that has everything, before the kind of its store; with its form.
_FORMAT = "gateway-backup-1"

_PASSWORD = re.compile(r"(?<!:/):[^@/]*(?=@)|\w*password=[^&]*&?")


def add_parser(commands: Any) -> None:
    """Declare the commands."""
    declare(commands, __name__, {"backup": _backup, "restore": _restore})


async def _backup(_stores: Stores, settings: Settings, args: Namespace) -> None:
    _pack(settings.storage, args.file)
    text = f"{args.file} is made of {settings.storage.file or settings.storage.place}"
    _say(args, settings.storage, text, server="pg_dump -Fc -f")


def _say(args: Namespace, storage: StorageSettings, text: str, *, server: str) -> None:
    """Print what was done, and the command for what only the server's own programs copy."""
    if storage.url:
        line = f"{server} '{args.file}.dump' -d '{_PASSWORD.sub('', storage.url)}'"
        text += f"; the database itself, with its password in PGPASSWORD:\n{line}"
    answer(args, {"path": args.file}, text)


def _pack(storage: StorageSettings, file: str) -> None:
    from gateway.stores.sqlite.copies import snapshot

    if os.path.lexists(file):
        raise ConfigError(f"{file!r} is there already: name a new file")
    # Errors name the file in place of this folder (`in_words`).
    with TemporaryDirectory(prefix=f"{Path(file).name}.making-", dir=Path(file).parent) as name:
        folder = Path(name, _FORMAT + storage.kind)
        folder.mkdir()
        snapshot(storage, folder)
        _check_files(folder, storage.place)
        made = Path(name, "made")
        with tarfile.open(made, "w:gz", compresslevel=1) as tar:
            tar.add(folder, folder.name)
        made.chmod(0o600)
        made.rename(file)


def _restore(args: Namespace) -> None:
    from gateway.stores.sqlite.copies import DATABASE, put_in_place, take_over
    from gateway.stores.sqlite.database import MIGRATIONS

    lost = ""
    kept = f".replaced-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}" * args.replace
    with reported(BadRequest):
        settings = load_settings(args.config, upstreams=False)
        storage = settings.storage
        place = Path(storage.file or storage.spool_folder)
        if not place.name:
            raise ConfigError(f"storage: {storage.place} has no file in which it could be put")
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(
            prefix=f"{place.name}.replacing-{Path(args.file).name[:99]}-", dir=place.parent
        ) as name:
            folder = Path(name, _FORMAT + storage.kind)
            _unpack(args.file, folder)
            own = replace(storage, path=str(folder / DATABASE), copy_before_changes=False)
            if not storage.shared:
                lost = take_over(own.path, storage.file, "".join([each.sql for each in MIGRATIONS]))

            async def put(*_: object) -> None:
                """Put the files of a server in place before the audit log says so. That of SQLite
                is in a file that has to be closed first."""
                if storage.shared:
                    put_in_place(storage, folder, kept)

            # A server's database that is still empty has no key: its own program puts it there.
            with suppress(*storage.shared * [StoreReplaced]):
                asyncio.run(run_on(put, replace(settings, storage=own), args))
            if folder.exists():
                put_in_place(storage, folder, kept)
        # Of this restore, of earlier ones, and of those that were killed or go on.
        if left := sorted(map(str, place.parent.glob(f"{place.name}*.replac*-*"))):
            lost += f"; what restores have left is kept: {', '.join(left)}"
    _say(args, storage, f"{place} is restored{lost}", server="pg_restore --no-owner")


def _unpack(file: str, folder: Path) -> None:
    """Make the folder of a backup again. Raises: ConfigError: it is not whole, or another one."""
    try:
        with gzip.open(file) as whole, tarfile.open(fileobj=whole, mode="r|") as tar:
            # A backup has files and folders alone: links lead out of a folder in ways of their own.
            # No moves are decided in it.
            tar.extractall(
                folder.parent,
                (m for m in tar if m.type in b"05" and MOVES not in m.name),
                filter="data",
            )
            whole.read()  # the checksum of all is at the end
    except (tarfile.TarError, OSError, EOFError, RecursionError, zlib.error) as error:
        text = f"{file!r} is no whole backup of a gateway ({in_words(error)})"
        raise ConfigError(text) from error
    if not folder.is_dir():
        raise ConfigError(f"{file!r} is of a newer version, of another kind of store or no backup")
    _check_files(folder, file)


def _check_files(folder: Path, whose: str) -> None:
    """Raises: ConfigError: a database in the folder is damaged."""
    from gateway.stores.sqlite.damage import THOROUGH, damage

    for each in folder.rglob("*.db"):
        if reason := damage(str(each), THOROUGH):
            raise ConfigError(f"{whose!r}: {each.name} is damaged ({reason})")
