"""`/api/keys`: gateway keys, made, changed, rotated and revoked with the admin key."""

import time
from collections.abc import Awaitable

from msgspec.structs import fields
from pydantic import BaseModel, ConfigDict, create_model

from gateway.api.operations import ApiRequest, ApiResponse, Body, Operations, like, shape
from gateway.api.params import Parameters, PathText, TenantParameter, Text, naming
from gateway.errors import NotFound
from gateway.features.keys.keyring import create_key, key_view, rotate_key
from gateway.features.keys.records import KeyRecord, KeyTerms
from gateway.features.keys.store import KeyStore
from gateway.runtime import Runtime
from gateway.values import T

OPERATIONS = Operations()
_OPTIONAL = {
    field.name: (field.type, {} if field.name == "tags" else field.default)
    for field in fields(KeyTerms)
    if field.name != "replaces"
}


class KeyChange(create_model("_", __config__=ConfigDict(extra="forbid"), **_OPTIONAL)):  # type: ignore[misc]
    """Terms of a key; those that are left out stay. A number that is null: no limit."""


class NewKeyBody(KeyChange):
    """A key that is to be made."""

    tenant: str  # whose data the key reaches
    name: str = ""  # its agent or machine; usage and budgets go by it


class KeyParameters(Parameters):
    """Id of a key."""

    key_id: PathText  # the id of a key


class RotationParameters(KeyParameters):
    """A key, and the time for which both are valid."""

    overlap: Text = "24h"  # time for which the old one stays valid


@like(KeyTerms)
@like(KeyRecord, "id", "tenant", "name", "hint", "created_at", "revoked_at")
class KeyView(BaseModel):
    """A key: its attributes, rights and limits."""

    state: str  # `valid`, `expired` or `revoked`
    key: str | None = None  # the key itself, once: in the answer that makes it


KeyPage = shape("KeyPage", "All keys.", keys=list[KeyView])
_MADE = Body(KeyView, "The new key.")
_CHANGED = Body(KeyView, "The key afterwards.")


@OPERATIONS.add("GET /api/keys", KeyPage, "The keys, oldest first.", needs="control")
async def list_keys(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Gateway keys that are stored, without the keys themselves."""
    found = await stored_keys(request.runtime).list_keys()
    shown = [key_view(key) for key in found if request.tenant in (None, key.tenant)]
    return ApiResponse({"keys": shown})


@OPERATIONS.add("POST /api/keys", _MADE, body=NewKeyBody)
async def add_key(request: ApiRequest[Parameters]) -> ApiResponse:
    """Make a key. After the first one every request needs a key."""
    given = request.read(NewKeyBody).model_dump()
    store = stored_keys(request.runtime)
    work = create_key(store, given.pop("tenant"), given.pop("name"), terms=given)
    made = await done(request.runtime, work)
    return ApiResponse(key_view(made.record) | {"key": made.text})


@OPERATIONS.add("PATCH /api/keys/{key_id}", _CHANGED, body=KeyChange)
async def change_key(request: ApiRequest[KeyParameters]) -> ApiResponse:
    """Change the terms of a key, at every gateway within `auth.poll_s`."""
    changes = request.read(KeyChange).model_dump(exclude_unset=True)
    work = stored_keys(request.runtime).change_key(request.params.key_id, changes)
    return ApiResponse(key_view(await done(request.runtime, work)))


@OPERATIONS.add("DELETE /api/keys/{key_id}", shape("RevokedKey", "Its id.", revoked=str))
async def revoke_key(request: ApiRequest[KeyParameters]) -> ApiResponse:
    """Revoke a key for ever."""
    key_id = request.params.key_id
    await done(request.runtime, stored_keys(request.runtime).revoke_key(key_id, time.time()))
    return ApiResponse({"revoked": key_id})


@OPERATIONS.add("POST /api/keys/{key_id}/rotate", _MADE)
async def replace_key(request: ApiRequest[RotationParameters]) -> ApiResponse:
    """Make a key with the same rights and budget; the old one expires after the overlap."""
    store = stored_keys(request.runtime)
    given = request.params
    made = await done(request.runtime, rotate_key(store, given.key_id, given.overlap))
    return ApiResponse(key_view(made.record) | {"key": made.text})


def stored_keys(runtime: Runtime) -> KeyStore:
    """The store of keys. Raises: NotFound: this database has none."""
    found = runtime.opened.stores.of(KeyStore)
    if found is None:
        raise NotFound("this gateway's store keeps no keys")
    return found


async def done(runtime: Runtime, work: Awaitable[T | None]) -> T:
    """The result of a change of keys, which this gateway follows at once. Raises: BadRequest: a
    value is not allowed; NotFound: there is no such valid key."""
    with naming("body"):
        result = await work
    await runtime.keys.refresh(runtime.opened.stores)
    if not result:
        raise NotFound("there is no valid key with this id", param="key_id")
    return result
