"""Chat completions: the dialect whose messages are those of the core."""

import re
from collections.abc import Sequence

from gateway.core.edits import (
    AppendToResult,
    Edit,
    InsertMessage,
    InsertSystem,
    SystemAppend,
    apply,
)
from gateway.dialects.base import (
    Addressed,
    ChatView,
    Dialect,
    LiteLLMCall,
    SteeredRequest,
    StreamRead,
)
from gateway.values import FieldDict, Fields
from gateway.wire.chat_assembly import assemble
from gateway.wire.parsing import Loads
from gateway.wire.request import Splice, append_to_message, insert_message


class ChatDialect(Dialect):
    """`POST /v1/chat/completions`, and Azure's older paths. Source: OpenAI API reference, "Chat
    Completions"; Azure OpenAI's, whose deployments are its models."""

    name = "chat"
    path = "/chat/completions"
    routes = (
        "/v1/chat/completions",
        "/chat/completions",
        "/copilot/chat/completions",
        "/openai/deployments/{model}/chat/completions",
    )
    form = re.compile("(/openai/deployments/)([^/]+)(/chat/completions)")
    list_key = "messages"
    route = "chat_completions"
    litellm = LiteLLMCall(function="acompletion")

    def members(self, addressed: Addressed, body: Fields) -> FieldDict:
        """See Dialect. At Azure, too, the body says whether to stream."""
        return {"model": addressed.model}

    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        splices = []
        for edit in edits:
            match edit:
                case SystemAppend():
                    splices += append_to_message(
                        request, edit.index, edit.texts, breakpoint=edit.breakpoint
                    )
                case InsertSystem():
                    splices.append(
                        insert_message(request, 0, "system", text="\n\n".join(edit.texts))
                    )
                case InsertMessage():
                    splices.append(
                        insert_message(request, edit.position, edit.role, text=edit.text)
                    )
                case AppendToResult():
                    splices += append_to_message(request, edit.index, edit.texts)
        return splices

    def edited(self, request: SteeredRequest, edits: Sequence[Edit]) -> Fields:
        return {**request.body, self.list_key: apply(request.messages, edits)}

    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        assembler, ended = assemble(stream, loads)
        failure = assembler.failure
        whole = failure is None and (ended or assembler.finished)
        return StreamRead(
            completion=assembler.completion() if whole else None,
            partial=None if whole else assembler.completion(),
            usage=assembler.usage,
            began=assembler.began,
            ended=ended,
            # A last event that is cut is not odd.
            odd=assembler.malformed > 0 and stream.endswith((b"\n\n", b"\r\n\r\n")),
            failure=failure,
        )

    def read_answer(self, body: FieldDict) -> ChatView | None:
        return body


CHAT = ChatDialect()
