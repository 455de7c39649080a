"""The routes that a gateway key may use while the operator's provider key is spent.

Files, batches, fine-tuning, the organization and stored answers of a provider account belong to
everybody who has its key. A tenant of this gateway has inference, and the answers that it was
given; a client that brings a provider's credential of its own is the provider's business.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.auth.authenticator import Principal
from gateway.errors import Forbidden, NotFound
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.stores.protocols import StoreError
from gateway.upstream import credentials
from gateway.upstream.dispatch import UpstreamCall

# Compared with the path as it is sent, so that no other spelling of a path passes for one of these.
_INFERENCE: Final = re.compile(
    r"POST /(?:chat/completions|completions|complete|embeddings|moderations|rerank"
    r"|responses|responses/(?:compact|input_tokens)|messages|messages/count_tokens"
    r"|audio/(?:speech|transcriptions|translations)|images/(?:generations|edits|variations))"
    r"|(?:GET|HEAD) /models(?:/[A-Za-z0-9._:-]+(?:/[A-Za-z0-9._:-]+)?)?"
    r"|GET /realtime"
)
_STORED: Final = re.compile(
    r"(?:GET|DELETE) /responses/([A-Za-z0-9_-]+)(?:/input_items)?"
    r"|POST /responses/([A-Za-z0-9_-]+)/cancel"
)


async def require_right(
    runtime: Runtime, services: Services, principal: Principal, call: UpstreamCall
) -> None:
    """Refuse a route that this key may not use.

    Raises:
        Forbidden: it is no inference, and the key's tenant is not in `auth.provider_resources`.
        NotFound: it is about a stored answer that this tenant was not given.
    """
    if not _is_limited(services, principal, call):
        return
    route = f"{call.method} {call.path}"
    if _INFERENCE.fullmatch(route):
        return
    if stored := _STORED.fullmatch(route):
        await require_own_answer(runtime, services, principal, call, stored[1] or stored[2])
        return
    raise Forbidden(
        f"{call.method} {call.path} would use the operator's provider account: a gateway key has "
        f"inference only, unless auth.provider_resources lists its tenant {principal.tenant!r}"
    )


async def require_own_answer(
    runtime: Runtime, services: Services, principal: Principal, call: UpstreamCall, name: str
) -> None:
    """Refuse an answer that another tenant was given. Raises: NotFound."""
    if not _is_limited(services, principal, call):
        return
    if runtime.stored_answers.targets.knows(principal.tenant, name):
        return
    try:
        owner, _ = await services.loader.response(principal.tenant, name)
    except StoreError:
        owner = ""
    if not owner:
        raise NotFound(f"there is no response {name[:80]!r}")


def _is_limited(services: Services, principal: Principal, call: UpstreamCall) -> bool:
    """Whether a tenant's key, and no more, would spend the operator's key."""
    listed = services.settings.auth.provider_resources
    if not principal.key or principal.operator or principal.tenant in listed or "*" in listed:
        return False
    target = (call.at or services.table.default).for_client(call.dialect, call.api)
    return credentials.operator_key(target) is not None
