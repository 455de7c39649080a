"""The routes, models and stored things that a gateway key may use.

`auth.rights`, and the terms of a stored key, limit it to routes and models. Files, batches, fine-
tuning, the organization and stored answers of a provider account belong to everybody who has its
key: while the operator's is spent, a tenant of this gateway has inference, and the answers that it
was given; a client that brings a provider's credential of its own is the provider's business. The
operator's key is put on in one place (`gateway/upstream/dispatch.py`), and a call that may not have
it carries its refusal there, whichever deployment, fallback or default upstream it ends at."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import parse_qs

from gateway.auth.keys import Principal
from gateway.data_files import read_toml
from gateway.dialects import SteeredRequest
from gateway.endpoints.rights_without_keys import Rights
from gateway.errors import Forbidden, GatewayError, NotFound
from gateway.features.keys.keyring import own
from gateway.features.keys.records import KeyTerms
from gateway.features.keys.settings import KeyRights
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.stores.protocols import StoreError
from gateway.tasks import off_loop
from gateway.upstream.dispatch import UpstreamCall
from gateway.values import Fields
from gateway.wire.coerce import as_mapping, as_text, list_at, mapping_at, objects, text_at
from gateway.wire.headers import header
from gateway.wire.message_identity import REFERENCE
from gateway.wire.parsing import parse_object, refuse_repeated
from gateway.wire.request import ChatRequest

# Compared with the path as it is sent, so that no other spelling of a path passes for one of these.
_INFERENCE = re.compile(
    r"POST /(?:chat/completions|completions|complete|embeddings|moderations|rerank"
    r"|responses|responses/(?:compact|input_tokens)|messages|messages/count_tokens"
    r"|audio/(?:speech|transcriptions|translations)|images/(?:generations|edits|variations)"
    r"|model/[^/]+/(?:invoke(?:-with-response-stream)?|converse(?:-stream)?|count-tokens)"
    r"|v1\w*/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/[^/]+:(?:r|streamR)awPredict)"
    r"|(?:GET|HEAD) /models(?:/[A-Za-z0-9._:-]+(?:/[A-Za-z0-9._:-]+)?)?"
    r"|GET /realtime"
)
_STORED = re.compile(
    r"(?:GET|DELETE) /responses/([A-Za-z0-9_-]+)(?:/input_items)?"
    r"|POST /responses/([A-Za-z0-9_-]+)/cancel"
)
_FORM = b"multipart/form-data"  # uploads of sound and images, which name nothing stored

# What a body contains that names a stored thing in its messages: most have none of it.
_MAY_NAME = re.compile(
    rb'file_ids?|file_?[uU]ri|s3Location|vector_store_ids|container|retrieval|promptVar|file_?[sS]earch|item_reference|image_generation_call|skill_id|"(?:audio|voice)"|(?i:"gs:|"s3:|generativelanguage)|\\u00|"type"\s*:\s*null|\{\s*"id"\s*:\s*"[^"\\]{1,200}"\s*\}'
)
_IN_CLOUD = re.compile(r"gs://|s3://|https://generativelanguage\.", re.IGNORECASE)
_NAMES_SOMETHING: Mapping[str, Callable[[Any], object]] = {
    "any": bool,
    "object": lambda held: as_mapping(held).get("id"),
    "text": lambda held: isinstance(held, str),
    "address": lambda held: _IN_CLOUD.match(str(held)),
}
_THINGS = read_toml(__package__, "stored_things.toml")
_MEMBERS = {key: _NAMES_SOMETHING[how] for key, how in _THINGS["members"].items()}
_WORDS = _THINGS["words"]
_RIGHTS = "auth.rights, or the key's own"


class RightsOfKeys(Rights):
    """The limits of `auth.rights`, of the keys' own terms and of `auth.provider_resources`."""

    def require_route(self, services: Services, principal: Principal, path: str) -> None:
        """Refuse a route that `auth.rights` does not give to this key. Raises: Forbidden."""
        for rights in _rights(services, principal):
            if not any(fnmatchcase(path, pattern) for pattern in rights.routes):
                raise Forbidden(f"this key may not use {path} ({_RIGHTS})")

    def may_use_model(self, services: Services, principal: Principal, name: str) -> bool:
        """Whether `auth.rights` gives a model to this key."""
        limits = _rights(services, principal)
        return all(any(fnmatchcase(name, p) for p in rights.models) for rights in limits)

    def require_models(self, services: Services, principal: Principal, body: Fields | None) -> None:
        """Refuse a body that asks for a model which this key may not use; None: cannot be read.
        Raises: Forbidden: a model that is not in `auth.rights`, or none where models are limited.
        """
        if not _rights(services, principal):
            return
        body = body or {}
        for name in [body.get("model"), *list_at(body, "models")]:  # OpenRouter's own fallbacks
            asked = as_text(name, "")
            if not self.may_use_model(services, principal, asked):
                what = "a request whose model is not read"
                if asked:
                    what = f"the model {asked[:80]!r}"
                raise Forbidden(f"this key may not use {what} ({_RIGHTS})")

    async def require_right(
        self, runtime: Runtime, services: Services, principal: Principal, call: UpstreamCall
    ) -> None:
        """Refuse a route that this key may not use, now or where the operator's key would be spent.
        Raises: Forbidden: it is not in `auth.rights`."""
        self.require_route(services, principal, call.path)
        if not _is_limited(services, principal):
            return
        route = f"{call.method} {call.path}"
        if stored := _STORED.fullmatch(route):
            call.instead_of_operator_key = await _unless_own(
                runtime, services, principal, name=stored[1] or stored[2]
            )
            return
        if _INFERENCE.fullmatch(route):
            if call.path == "/realtime" and "call_id" in parse_qs(call.query.decode("latin-1")):
                route = "a call that is named by its id"
            elif call.method == "POST" and not header(call.headers, b"content-type").startswith(
                _FORM
            ):
                route = "a body that is not read"  # until it has been read
            else:
                return
        call.instead_of_operator_key = _forbidden(principal, route)

    async def require_own(
        self,
        runtime: Runtime,
        services: Services,
        principal: Principal,
        call: UpstreamCall,
        request: ChatRequest | None,
    ) -> None:
        """Refuse a body that asks for a model or names stored things that are not this key's.
        `request`: None for a body that cannot be read. Raises: Forbidden: the model is not in
        `auth.rights`. BadRequest: two members have one name."""
        in_path = False
        if isinstance(request, SteeredRequest):
            in_path = request.addressed is not None
            if request.opaque:
                request = None
        is_limited = _is_limited(services, principal)
        if request is not None and (is_limited or _rights(services, principal)):
            refuse_repeated(request.raw)
        self.require_models(services, principal, None if request is None else request.body)
        if not (is_limited and (in_path or _INFERENCE.fullmatch(f"{call.method} {call.path}"))):
            return
        if request is None:
            call.instead_of_operator_key = _forbidden(principal, "a body that cannot be read")
            return
        at_cloud = in_path or call.seat is not None
        call.instead_of_operator_key = await _refusal(
            runtime, services, principal, request=request, at_cloud=at_cloud
        )


async def _refusal(
    runtime: Runtime, services: Services, principal: Principal, request: ChatRequest, at_cloud: bool
) -> GatewayError | None:
    """Why a request may not spend the operator's key; None if it may."""
    body = request.body
    if at_cloud and ":prompt/" in str(body.get("model")):  # Source: Bedrock's `Converse`, `modelId`
        return _forbidden(principal, "a stored prompt")
    earlier = text_at(body, "previous_response_id")
    if earlier and (refusal := await _unless_own(runtime, services, principal, name=earlier)):
        return refusal
    for name in _THINGS["body"]:
        if body.get(name) and (name != "prompt" or mapping_at(body, name)):
            return _forbidden(principal, f"{name!r} in the body")
    if _MAY_NAME.search(request.raw) is None:
        return None
    # A large body has not been read, and takes its time.
    named = await off_loop(_stored_things, request, at_cloud)
    items: Fields = {}
    with suppress(StoreError):
        items = await services.loader.items(principal.tenant, [name for _, name in named])
    # Unless all of it are items that the tenant was given, and the containers of their calls.
    known = {*items, *map(_container, items.values())}
    for kind, name in named:
        if name not in known:
            if kind == REFERENCE:
                return NotFound(f"there is no item {name[:80]!r}")
            return _forbidden(principal, f"{kind!r} in the body")
    return None


def _container(item: Fields) -> Any:
    """The id of the container in which an item's call was made; None for none."""
    return item.get("container_id") or mapping_at(item, "environment").get("container_id")


def _stored_things(request: ChatRequest, at_cloud: bool) -> list[tuple[str, str]]:
    """(kind, id) of the things stored at the provider that a body names."""
    # What a cloud's dialect has read has members in the words of others.
    if at_cloud:
        body = parse_object(request.raw, json.loads)
    else:
        body = request.whole
    found = []
    waiting = list[Any]([body])
    for item in objects(body.get("input")):
        name = item.get("id")
        kind = item.get("type")
        bare = kind is None and not item.keys() & {"role", "content"}
        drawn = kind == "image_generation_call" and not item.get("result")
        if isinstance(name, str) and (bare or drawn or kind == REFERENCE or _container(item)):
            found.append((REFERENCE, name))
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            words = _WORDS
            if "name" in value and value is not body:
                words = _WORDS + _THINGS["words_of_tools"]
            for key, held in value.items():
                if key in _MEMBERS and _MEMBERS[key](held):
                    found.append((key, str(held)))
                if key not in words:
                    waiting.append(held)
    return found


async def _unless_own(
    runtime: Runtime, services: Services, principal: Principal, name: str
) -> NotFound | None:
    """The refusal of an answer that another tenant was given."""
    stored = runtime.stored_answers
    if stored.targets.knows(principal.tenant, name) or (principal.tenant, name) in stored.pending:
        return None
    with suppress(StoreError):
        if (await services.loader.response(principal.tenant, name))[0]:
            return None
    return NotFound(f"there is no response {name[:80]!r}")


def _forbidden(principal: Principal, what: str) -> Forbidden:
    return Forbidden(
        f"{what} would use the operator's provider account: a gateway key has inference only, "
        f"unless auth.provider_resources lists its tenant {principal.tenant!r}"
    )


def _is_limited(services: Services, principal: Principal) -> bool:
    """Whether a request has a tenant's key, and no more."""
    if not principal.key:
        return False
    listed = own(services.settings.auth).provider_resources
    return not (principal.operator or principal.tenant in listed or "*" in listed)


def _rights(services: Services, principal: Principal) -> Sequence[KeyRights | KeyTerms]:
    """The limits of a key: its own, and entries for it, its tenant and all. All of them hold."""
    limits = list[KeyRights | KeyTerms]()
    if not principal.key:
        return limits
    rights = own(services.settings.auth).rights
    terms = cast("KeyTerms | None", principal.terms)
    if terms is not None and not terms.routes == terms.models == ("*",):
        limits.append(terms)
    names = dict.fromkeys((principal.key, principal.tenant, "*"))
    limits += [rights[name] for name in names if name in rights]
    return limits
