"""`gateway learn`: lessons and rules, in a terminal, also while a gateway is running."""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, as_line, kept, permit, say
from gateway.config import Settings
from gateway.core.pattern import RETRIEVED, Status
from gateway.errors import ConfigError
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import BY_OPERATOR, LessonActions
from gateway.features.learning.reader.lines import added_to, exported
from gateway.features.learning.stated_rules import rule_views
from gateway.features.learning.typed_counts import count_typed
from gateway.steering.guidance.lessons import SAID
from gateway.stores.learning import LessonFilter
from gateway.stores.records import PromptMessage
from gateway.text.formatting import counted
from gateway.text.page import rendered
from gateway.values import FieldDict

_MOST = 100_000


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    changing = ("learn approve", "learn retire", "learn edit", "learn mark")
    does = dict.fromkeys(changing, _change) | {"learn add": _add, "learn rules": _rules}
    declare(commands, __name__, does)


async def _change(stores: Stores, settings: Settings, args: Namespace) -> None:
    """Move, edit or mark a lesson."""
    found = await stores.learning.lesson(args.tenant, args.pattern_id)
    stored = kept(found, f"there is no lesson {args.pattern_id!r}")
    given = vars(args)
    what: dict[str, Any] = {name: given[name] for name in ("status", "advice") if name in given}
    if "step" in given:
        what["mark"] = args
    try:
        name, changed = await LessonActions(stores.learning).change(
            stored, stores.runs, at=time.time(), **what
        )
    except ValueError as error:
        raise ConfigError(f"{'mark' if 'step' in given else 'advice'}: {error}") from error
    text = name
    if "advice" not in what:
        text = "done" if changed else "nothing changed"
    answer(args, {"pattern_id": name, "changed": changed}, text)


async def _add(stores: Stores, settings: Settings, args: Namespace) -> None:
    scope, name = _project_in(args.project.absolute())
    marks = {"scope": scope, "project": name, "author": args.author}
    at = time.time()
    if args.typed:
        at = datetime.fromisoformat(args.typed).replace(tzinfo=UTC).timestamp()
    actions = LessonActions(stores.learning)
    args.pattern_id = await actions.add(DEFAULT_TENANT, args.words, marks, at=at)
    answer(args, {"pattern_id": args.pattern_id, "changed": True}, args.pattern_id)


def _project_in(folder: Path) -> tuple[str, str]:
    """The project of runs in a folder; see `project_of`."""
    return project_of([PromptMessage(role="system", text=f"Working directory: {folder}")])


async def _rules(stores: Stores, settings: Settings, args: Namespace) -> None:
    wanted = LessonFilter(tenant=args.tenant, key_prefix=f"{SAID}|")
    found = await stores.learning.lessons(wanted, limit=_MOST)
    counts = await count_typed(stores.learning, found, args.tenant)
    rows = rule_views(found, counts)
    if args.project or args.export:
        scope, name = _project_in(Path.cwd())
        own = (row["project"] for row in rows if row["scope"] == scope)
        name = args.project or next(own, name)
        known = ", ".join(sorted({row["project"] for row in rows})) or "none, nobody stated a rule"
        rows = [row for row in rows if row["project"] == name]
        if not rows:
            raise ConfigError(f"no rules of {name!r}; known for --project: {known}")
    if args.export:
        args.changes = True
        await permit(stores, args)
        await _export_rules(stores, args.export, rows)
        return
    if not args.json:
        return say(rendered(__package__, "rules.txt", {"rows": rows}).rstrip())
    for row in rows:
        say(as_line({**row, "typed": asdict(row["typed"])}))


async def _export_rules(stores: Stores, file: str, rows: Sequence[FieldDict]) -> None:
    """Print a diff that adds the active rules to a project's file, and pause them."""
    rows = [row for row in rows if row["status"] in RETRIEVED]
    if not rows:
        raise ConfigError("none of its rules is given: `gateway learn approve ID` approves one")
    diff, _ = added_to(file, _text_of(Path(file)), [exported(row) for row in rows])
    sys.stdout.write(diff)
    for row in rows:
        which = (row["tenant"], row["pattern_id"])
        reason = f"exported to {file} {BY_OPERATOR}"
        await stores.learning.move(*which, Status.QUARANTINED, reason=reason, at=time.time())
    given = f"{counted(len(rows), 'rule')} will no longer be given"
    sys.stderr.write(f"gateway: {given}: `patch -p1` applies the diff, `learn approve` undoes it\n")


def _text_of(file: Path) -> str:
    if file.exists():
        return file.read_bytes().decode()
    return ""
