"""Changes of the pattern library, shared by the control plane and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.auth.access import Access
from gateway.embedding.base import EmbeddingError
from gateway.errors import BadRequest, Forbidden, GatewayError, NotFound
from gateway.library import PatternLibrary
from gateway.runtime import Runtime
from gateway.steering.guidance.codec import from_record
from gateway.steering.guidance.pattern import Pattern, Tier, with_id
from gateway.stores.patterns import Added, PatternConflict, StoredPattern


async def find_pattern(runtime: Runtime, tenant: str | None, pattern_id: str) -> StoredPattern:
    """The pattern with this id, if `tenant` may see it.

    Raises:
        NotFound: there is none, or it belongs to another tenant.
    """
    await counted(runtime)
    stored = await library(runtime).store.get(tenant, pattern_id)
    if stored is None:
        raise _unknown(pattern_id)
    return stored


def read_pattern(record: Mapping[str, Any], access: Access, tenant: str | None) -> Pattern:
    """The pattern in a record, owned by the caller's tenant or the one that the operator names.

    Raises:
        BadRequest: the record is not a pattern, or is an instance without a tenant.
        Forbidden: a tenant's key may not change shared patterns.
    """
    owner = access.scope(tenant) or ""
    try:
        pattern = from_record(record, tenant=owner)
    except (ValueError, RecursionError) as error:
        raise BadRequest(str(error) or "nested too deeply", param="body") from None
    if pattern.tier is Tier.E1 and not owner:
        raise BadRequest("tenant: a pattern of tier e1 belongs to one tenant", param="tenant")
    _check_owner(pattern, access)
    return with_id(pattern)


async def add_pattern(runtime: Runtime, pattern: Pattern) -> tuple[Added, str]:
    """Store a new pattern; one with a known content or id is left unchanged or replaced."""
    try:
        ((added, pattern_id),) = await library(runtime).add([pattern])
    except EmbeddingError as error:
        raise _no_vector(error) from None
    publish_change(runtime, added.value, pattern_id=pattern_id)
    return added, pattern_id


async def change_pattern(
    runtime: Runtime, access: Access, stored: StoredPattern, record: Mapping[str, Any]
) -> StoredPattern:
    """Replace the content of a stored pattern; its id, tier and tenant stay.

    Raises:
        BadRequest: the record is not a pattern, or has another tier or id.
        Forbidden: as `read_pattern`.
        GatewayError: 409 when another pattern has this content.
    """
    old = stored.pattern
    if old.lesson is not None:
        raise BadRequest("a lesson is changed under /api/lessons", param="pattern_id")
    kept = {"pattern_id": old.pattern_id, "tier": old.tier.value}
    for key, value in kept.items():
        if record.get(key, value) != value:
            raise BadRequest(f"{key}: cannot be changed from {value!r}", param=key)
    new = read_pattern({**record, **kept}, access, old.tenant or None)
    try:
        await library(runtime).edit(new)
    except PatternConflict as error:
        raise GatewayError(
            str(error), status=409, type="invalid_request_error", code="conflict", label="conflict"
        ) from None
    except EmbeddingError as error:
        raise _no_vector(error) from None
    publish_change(runtime, "changed", pattern_id=old.pattern_id)
    return await find_pattern(runtime, old.tenant or None, old.pattern_id)


async def remove_pattern(
    runtime: Runtime, access: Access, tenant: str | None, pattern_id: str
) -> None:
    """Remove the pattern with this id, if `tenant` may see it.

    Raises:
        NotFound: there is none, or it belongs to another tenant.
        Forbidden: a tenant's key may not remove shared patterns.
    """
    stored = await find_pattern(runtime, tenant, pattern_id)
    _check_owner(stored.pattern, access)
    await library(runtime).remove(stored.pattern.tenant, pattern_id)
    publish_change(runtime, "deleted", pattern_id=pattern_id)


def library(runtime: Runtime) -> PatternLibrary:
    """The pattern library. Raises: GatewayError (503) when patterns are switched off."""
    patterns = runtime.opened.patterns
    if patterns is None:
        raise GatewayError(
            "patterns are switched off (etraces.enabled)",
            status=503,
            type="server_error",
            code="patterns_off",
            label="patterns_off",
        )
    return patterns.library


async def counted(runtime: Runtime) -> None:
    """Flush pattern statistics, so that the next read includes everything so far."""
    if runtime.opened.patterns is not None:
        await runtime.opened.patterns.tally.flush()


def _check_owner(pattern: Pattern, access: Access) -> None:
    if not access.operator and pattern.tenant != access.tenant:
        raise Forbidden("shared patterns belong to the operator: change them with the admin key")


def publish_change(runtime: Runtime, what: str, **details: Any) -> None:
    """Log a change of the library and publish an event."""
    runtime.events.publish({"type": "pattern", "tenant": None, "result": what})
    runtime.log.info("patterns changed", result=what, **details)


def _unknown(pattern_id: str) -> NotFound:
    return NotFound(f"there is no pattern {pattern_id[:80]!r}", param="pattern_id")


def _no_vector(error: EmbeddingError) -> GatewayError:
    return GatewayError(
        f"the pattern cannot be embedded now: {error}",
        status=503,
        type="server_error",
        code="embedder_unavailable",
        label="embedding",
    )
