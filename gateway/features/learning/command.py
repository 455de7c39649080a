"""`gateway learn`: lessons and rules, in a terminal, also while a gateway is running."""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import unified_diff
from io import StringIO
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, kept, permit, say
from gateway.config import Settings
from gateway.core.pattern import RETRIEVED, Status
from gateway.errors import ConfigError
from gateway.features.learning import views
from gateway.features.learning.context import project_of
from gateway.features.learning.counted import count_typed
from gateway.features.learning.gate import MOST_CHARS
from gateway.features.learning.life_cycle import BY_OPERATOR, LessonActions
from gateway.steering.guidance.lessons import SAID
from gateway.stores.learning import LessonFilter
from gateway.stores.records import PromptMessage
from gateway.text.formatting import counted
from gateway.text.sanitize import one_line
from gateway.values import FieldDict

_MOST = 100_000


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    does = {
        "learn approve": _approve,
        "learn retire": _retire,
        "learn edit": _edit,
        "learn add": _add,
        "learn mark": _mark,
        "learn rules": _rules,
    }
    declare(commands, __name__, does)


async def _approve(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    if args.active:
        status = Status.ACTIVE
    else:
        status = Status.TRIAL
    await _move(stores, args, status, reason="approved by the operator")


async def _retire(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    if args.pause:
        status = Status.QUARANTINED
    else:
        status = Status.RETIRED
    await _move(
        stores, args, status, reason=f"{'paused' if args.pause else 'retired'} by the operator"
    )


async def _move(stores: Stores, args: argparse.Namespace, status: Status, reason: str) -> None:
    """Move a lesson to a status."""
    stored = await _stored(stores, args)
    changed = await LessonActions(stores.learning).move(stored, status, reason, at=time.time())
    shown = {"pattern_id": stored.pattern.pattern_id, "changed": changed}
    answer(args, shown, "done" if changed else "nothing changed")


async def _edit(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    stored = await _stored(stores, args)
    try:
        new = await LessonActions(stores.learning).edit(stored, args.advice, time.time())
    except ValueError as error:
        raise ConfigError(f"advice: {error}") from error
    answer(args, {"pattern_id": new.pattern_id, "changed": True}, new.pattern_id)


async def _add(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    opening = PromptMessage(role="system", text=f"Working directory: {args.project.absolute()}")
    scope, name = project_of([opening])
    marks = {"scope": scope, "project": name, "author": args.author}
    at = time.time()
    if args.typed:
        at = datetime.fromisoformat(args.typed).replace(tzinfo=UTC).timestamp()
    actions = LessonActions(stores.learning)
    args.pattern_id = await actions.add(DEFAULT_TENANT, args.words, marks, at=at)
    answer(args, {"pattern_id": args.pattern_id, "changed": True}, args.pattern_id)


async def _mark(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    stored = await _stored(stores, args)
    step = int(args.step)
    if args.remove:
        pattern = stored.pattern
        where = (pattern.tenant, pattern.pattern_id, args.run_id, step)
        changed = await stores.learning.unmark(*where)
    else:
        where = (stored, stores.runs, args.run_id, step)
        changed = await LessonActions(stores.learning).mark(*where, at=time.time())
    shown = {"pattern_id": stored.pattern.pattern_id, "changed": changed}
    answer(args, shown, "done" if changed else "nothing changed")


async def _rules(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    wanted = LessonFilter(tenant=args.tenant, key_prefix=f"{SAID}|")
    found = await stores.learning.lessons(wanted, limit=_MOST)
    counts = await count_typed(stores.learning, found, args.tenant)
    rows = views.rule_views(found, counts)
    if args.project or args.export:
        opening = PromptMessage(role="system", text=f"Working directory: {Path.cwd()}")
        scope, name = project_of([opening])
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
    for row in rows:
        said = f"{row['typed']} by {row['author'] or 'somebody'}"
        row["typed"] = asdict(row["typed"])
        why = one_line(row["why_not_active"] or row["reason"], 60)
        line = f"{row['project']:<16} {row['status']:<11} {row['pattern_id']}  {said}  "
        answer(args, row, f"{line}{one_line(row['advice'], 120)}  {why}")
    if not rows and not args.json:
        say("nobody has stated a rule yet")


async def _export_rules(stores: Stores, file: str, rows: Sequence[FieldDict]) -> None:
    """Print a diff that adds the active rules to a project's file, and pause them."""
    rows = [row for row in rows if row["status"] in RETRIEVED]
    if not rows:
        raise ConfigError("none of its rules is given: `gateway learn approve ID` approves one")
    sys.stdout.write(_added_to(file, [one_line(row["advice"], MOST_CHARS) for row in rows]))
    for row in rows:
        which = (row["tenant"], row["pattern_id"])
        reason = f"exported to {file} {BY_OPERATOR}"
        await stores.learning.move(*which, Status.QUARANTINED, reason=reason, at=time.time())
    given = f"{counted(len(rows), 'rule')} will no longer be given"
    sys.stderr.write(f"gateway: {given}: `patch -p1` applies the diff, `learn approve` undoes it\n")


def _added_to(file: str, rules: Sequence[str]) -> str:
    """A diff that adds rules to the end of a file in the current folder."""
    text = ""
    if Path(file).exists():
        text = Path(file).read_bytes().decode()
    end = "\r\n" if "\r\n" in text else "\n"
    old = StringIO(text, newline="\n").readlines()
    added = [*([""] if old else []), "## Rules", "", *(f"- {rule}" for rule in rules)]
    if text.endswith("\n") or not old:
        whole = old
    else:
        whole = [*old[:-1], old[-1] + end]
    names = (f"a/{file}" if old else "/dev/null", f"b/{file}")
    lines = unified_diff(old, [*whole, *(line + end for line in added)], *names)
    return "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)


async def _stored(stores: Stores, args: argparse.Namespace) -> Any:
    stored = await stores.learning.lesson(args.tenant, args.pattern_id)
    return kept(stored, f"there is no lesson {args.pattern_id!r}")
