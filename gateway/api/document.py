"""`/api/openapi.json`: the operations, described."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from gateway import __version__
from gateway.api.operations import JSON, Answer, Call, Operation, Reply
from gateway.api.schema import Schema

_ERRORS = {
    400: "A parameter or the body is wrong; `param` names it.",
    401: "No key, or one that is not known.",
    403: "The key may not do this.",
    404: "There is no such object, or it is another tenant's.",
    409: "Another object has the same content or id.",
    413: "The body is too large.",
    429: "Too many at once; `retry-after` tells when.",
    503: "The store, or what is asked for, cannot be used now.",
}
# Any operation may meet these.
_ALWAYS = (401, 403, 503)

_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of `operations`."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Steering gateway: control plane",
            "version": __version__,
            "description": "What the gateway saw, decided and cost. The admin key sees every "
            "tenant, a gateway key its own. Times are seconds since the epoch, costs US dollars; "
            "null is unknown, never zero.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-gateway-key"},
            },
        },
        # Without an admin key, a gateway on loopback asks for none.
        "security": [{"bearer": []}, {"header": []}, {}],
    }


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [param.document() for param in operation.params],
        "responses": {str(status): _answer(answer) for status, answer in operation.answers.items()}
        | {str(status): _error(status) for status in sorted({*operation.errors, *_ALWAYS})},
    }
    if operation.body is not None:
        content = {operation.body_media: {"schema": operation.body}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _answer(answer: Answer) -> dict[str, Any]:
    if not answer.media:
        return {"description": answer.description}
    return {
        "description": answer.description,
        "content": {answer.media: {"schema": answer.schema}},
    }


def _error(status: int) -> dict[str, Any]:
    return {
        "description": _ERRORS[status],
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }


def document_operation(operations: Sequence[Operation]) -> Operation:
    """The operation that gives the document of `operations` and of itself."""

    @cache
    def document() -> dict[str, Any]:
        return openapi((*operations, own))

    async def get_document(_call: Call) -> Reply:
        return Reply(payload=document())

    own = Operation(
        name="getDocument",
        method="GET",
        path="/api/openapi.json",
        summary="This document.",
        handler=get_document,
        answers={200: Answer("OpenAPI 3.1.", {"type": "object"})},
    )
    return own
