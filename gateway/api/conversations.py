"""`/api/conversations`: what shares one history."""

from __future__ import annotations

from gateway.api.filters import CURSOR, LIMIT, TENANT
from gateway.api.operations import Answer, Call, Operation, Reply
from gateway.api.params import Param
from gateway.api.schema import page_of, schema_of
from gateway.errors import BadRequest
from gateway.stores.queries import ConversationSummary


async def list_conversations(call: Call) -> Reply:
    """One page of conversations."""
    values = call.values
    try:
        page = await call.runtime.runs.list_conversations(
            tenant=call.tenant,
            external_key=values["external_key"],
            limit=values["limit"],
            cursor=values["cursor"],
        )
    except ValueError as error:
        raise BadRequest(str(error), param="cursor") from None
    return Reply(payload=page)


OPERATIONS = (
    Operation(
        name="listConversations",
        method="GET",
        path="/api/conversations",
        summary="Conversations, newest first; forks and sub-agents name their parent.",
        handler=list_conversations,
        params=(
            TENANT,
            Param(name="external_key", description="Known by this id outside."),
            LIMIT,
            CURSOR,
        ),
        answers={
            200: Answer("One page.", page_of("conversations", schema_of(ConversationSummary)))
        },
        errors=(400, 403),
    ),
)
