"""`/api/conversations`: the conversations, each with the number of its runs."""

from __future__ import annotations

from typing import Annotated

from gateway.api.filters import PageParameters, TenantParameter, described
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operation
from gateway.api.params import Text
from gateway.errors import BadRequest
from gateway.stores.queries import ConversationPage


class ConversationParameters(PageParameters, TenantParameter):
    """Which conversations."""

    external_key: Annotated[Text | None, described("With this id given by the client.")] = None


async def list_conversations(request: ApiRequest[ConversationParameters]) -> ApiResponse:
    """One page of conversations."""
    params = request.params
    try:
        page = await request.runtime.runs.list_conversations(
            tenant=request.tenant,
            external_key=params.external_key,
            limit=params.limit,
            cursor=params.cursor,
        )
    except ValueError as error:
        raise BadRequest(str(error), param="cursor") from None
    return ApiResponse(payload=page)


OPERATIONS = (
    Operation(
        name="listConversations",
        method="GET",
        path="/api/conversations",
        summary="Conversations, newest first; forks and sub-agents name their parent.",
        handler=list_conversations,
        params=ConversationParameters,
        responses={200: Content(ConversationPage, "One page.")},
        errors=(400, 403),
    ),
)
