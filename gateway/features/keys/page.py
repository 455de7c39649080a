"""The page of gateway keys."""

import time
from collections.abc import Awaitable
from typing import Any

from gateway.errors import BadRequest, GatewayError
from gateway.features.keys.api import done, stored_keys
from gateway.features.keys.keyring import NewKey, create_key, key_view, read_terms, rotate_key
from gateway.features.pages.pages import Page, PageRoute, Visit, redirect


async def show_keys(visit: Visit, error: str = "", made: str = "", made_id: str = "") -> Page:
    """The keys, to the operator. `made`: the text of a new one, which is shown this once."""
    visit.access.require_control()
    listed = [key_view(key) for key in await stored_keys(visit.runtime).list_keys()]
    values = {"title": "Keys", "keys": listed[::-1], "error": error, "form": visit.form}
    values |= {"made": made, "made_id": made_id}
    return Page(template="keys.html", values=values, status=400 if error else 200)


async def change_keys(visit: Visit) -> Page:
    """Make, rotate or revoke a key."""
    form = {name: text for name, text in visit.form.items() if text}
    act = form.get("action", "")
    key_id = form.get("subject", "")
    store = stored_keys(visit.runtime)
    work: Awaitable[Any]
    try:
        if act == "create":
            terms = form.get("tenant", ""), form.get("name", ""), read_terms(form)
            work = create_key(store, *terms)
        elif act == "rotate":
            work = rotate_key(store, key_id, form.get("overlap", "24h"))
        elif act == "revoke":
            work = store.revoke_key(key_id, time.time())
        else:
            raise BadRequest(f"action: {act[:40]!r} is not known", param="action")
        made = await done(visit.runtime, work)
    except (GatewayError, ValueError) as error:
        return await show_keys(visit, error=str(error))
    if isinstance(made, NewKey):
        return await show_keys(visit, made=made.text, made_id=made.record.id)
    return redirect("/dashboard/keys")


PAGES = (PageRoute("/dashboard/keys", show_keys, change=change_keys, tab="Keys", control=True),)
