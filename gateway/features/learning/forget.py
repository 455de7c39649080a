"""`gateway forget`: a session, or all of a person, erased wherever the gateway wrote them."""

import time
from argparse import Namespace
from collections import Counter
from typing import Any

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, confirmed, kept
from gateway.config import Settings
from gateway.features.learning.worker import open_learner
from gateway.hooks import given
from gateway.stores.records import CallRecord
from gateway.stores.sql import erase
from gateway.tasks import on_disk
from gateway.values import FieldDict

_AT_ONCE = 20  # sessions that one transaction erases: the commits of requests wait for it
OUT_OF_REACH = (
    "what providers, receivers of alerts and OTLP collectors were sent, agents' own logs, exports, "
    "reports and backups that people made, files set aside (damaged, replaced, upgraded)"
)


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"forget": forget_named})


async def forget_named(stores: Stores, settings: Settings, args: Namespace) -> None:
    """Ask, erase, and print what was erased."""
    person = args.subject is None
    args.subject = args.subject or args.person
    what = f"{'all sessions of' if person else 'the session'} {args.subject!r}"
    await confirmed(args, f"{what} will be erased for good.")
    found = await forget(stores, settings, args.subject, tenant=args.tenant, person=person)
    shown = kept(found, f"nothing is known of {what}")
    places = [f"{place} {number}" for place, number in shown["erased"].items() if number]
    rows = ", ".join(places).replace("_", " ")
    text = f"erased: {rows or 'nothing, it was forgotten before'}\nout of reach: {OUT_OF_REACH}"
    answer(args, shown, text)


async def forget(
    stores: Stores, settings: Settings, name: str, *, tenant: str | None, person: bool
) -> FieldDict | None:
    """Erase a session, or all sessions of a person: the number of rows by place; None for a name
    that is not known. Raises: StoreError, OSError."""
    engine = kept(stores.controls, "forget: only for a database with SQL").engine
    erased = Counter[str]()
    known = set[str]()
    owners = set[str]()
    live = [0]
    while live:
        found = await erase.find(
            engine, tenant, name, person=person, owner=tenant or DEFAULT_TENANT
        )
        known.update(row[1] for row in found)
        live = [row[0] for row in found if row[2] > 0][:_AT_ONCE]
        for owner, run in await erase.runs_of(engine, live, name if person else None):
            known.add(run)
            owners.add(owner)
            erased["lessons"] += len(await stores.learning.forget(owner, run, time.time()) or ())
        erased += await erase.erase(engine, live, DEFAULT_TENANT)

    def takes(call: CallRecord) -> bool:
        about = call.conversation
        if person:
            return any(name in (r.key_name, *map(r.tags.get, erase.TAGS)) for r in call.runs)
        return bool({name, *known} & {about.id, about.root_id, about.external_key})

    for remove in given("erase"):
        erased["records that waited"] += await on_disk(remove, settings.storage, takes)
    if not known and not erased.total():
        acts = await kept(stores.changes, name).find(subjects=[name], text="forget", limit=1)
        if not acts:
            return None
    await open_learner(stores, settings).review(late=True)  # lessons that its runs were given
    await engine.upkeep.scrub()
    return {
        "subject": name,
        "tenants": sorted(owners),
        "erased": dict(erased),
        "out_of_reach": OUT_OF_REACH,
    }
