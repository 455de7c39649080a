"""Routes of the control plane, and `/api/openapi.json`, which describes its operations."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from starlette.routing import Route

from gateway import __version__
from gateway.api import audit, control, events, patterns, runs, sessions, usage_and_export
from gateway.api.field_comments import field_comments
from gateway.api.operations import (
    JSON,
    ApiRequest,
    ApiResponse,
    Body,
    Operation,
    Operations,
    Resource,
    shape,
)
from gateway.api.params import Parameters
from gateway.auth.access import Gate
from gateway.auth.authenticator import Authenticator
from gateway.data_files import read_toml
from gateway.hooks import given
from gateway.runtime import Runtime
from gateway.tasks import off_loop
from gateway.values import FieldDict

_MODULES = (runs, sessions, patterns, events, control, usage_and_export, audit)
OPERATIONS = Operations()
_TABLE = read_toml(__package__, "openapi.toml")
# Any operation may answer with these.
_ALWAYS = (401, 403, 503)

Schema = FieldDict


class _BodySchema(GenerateJsonSchema):
    """Schemas of bodies. Every key of a dataclass is written, also one with a default, and each
    is described by the comment at its field."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _commented(schema["cls"], super().dataclass_schema(schema))

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _commented(schema["cls"], super().model_schema(schema))

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _ParameterSchema(_BodySchema):
    """Schemas of parameters. A parameter of None is left out of a request, so that no schema
    lists null."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        if found.get("default", ...) is None:
            del found["default"]
        return found


def _commented(kind: Any, schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema of a type, with the comments at its fields or at those of the value it shows."""
    comments: dict[str, str] = {}
    for each in getattr(kind, "described", (kind,)):
        comments |= field_comments(each)
    for name, described in schema.get("properties", {}).items():
        if name in comments:
            described.setdefault("description", comments[name].replace("None", "null"))
    return schema


ErrorDetail = shape(
    "ErrorDetail",
    "One error, as OpenAI's API describes errors.",
    message=str,
    type=str,
    param=str | None,
    code=str | None,
)
Error = shape("Error", "The body of every error.", error=ErrorDetail)


def openapi(operations: Sequence[Operation[Any]]) -> Schema:
    """The OpenAPI 3.1 document of `operations`."""
    components: Schema = {}
    components["Error"] = _body(Body(Error), "serialization", components)
    error = {"$ref": "#/components/schemas/Error"}
    paths: Schema = {}
    for operation in operations:
        described = _described(operation, components, error)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": _TABLE["openapi"],
        "info": {"version": __version__, **_TABLE["info"]},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _TABLE["securitySchemes"]},
        "security": _TABLE["security"],
    }


def _described(operation: Operation[Any], components: Schema, error: Schema) -> Schema:
    responses: Schema = {}
    for status, content in operation.responses.items():
        response: Schema = {"description": content.description}
        if content.type is not None:
            schema = _body(content, "serialization", components)
            others = {media: {"schema": {"type": "string"}} for media in content.also}
            response["content"] = {content.media: {"schema": schema}, **others}
        responses[str(status)] = response
    for status in sorted({*operation.errors, *_ALWAYS}):
        responses[str(status)] = {
            "description": _TABLE["errors"][str(status)],
            "content": {JSON: {"schema": error}},
        }
    model = operation.params
    parameters = []
    properties = model.model_json_schema(schema_generator=_ParameterSchema).get("properties", {})
    for name, schema in properties.items():
        in_path = f"{{{name}}}" in operation.path
        outside = "query"
        if name in model.in_headers:
            outside = "header"
        parameter = {
            "name": name,
            "in": "path" if in_path else outside,
            "required": in_path,
            "description": schema.pop("description"),
            "schema": schema,
        }
        parameters.append(parameter)
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if operation.body is not None:
        schema = _body(operation.body, "validation", components)
        media = {operation.body.media: {"schema": schema}}
        described["requestBody"] = {"required": True, "content": media}
    return described


def _body(content: Body, mode: JsonSchemaMode, components: Schema) -> Schema:
    """The schema of a body; the types that it refers to are added to `components`."""
    schema = TypeAdapter(content.type).json_schema(
        mode=mode, ref_template="#/components/schemas/{model}", schema_generator=_BodySchema
    )
    components.update(schema.pop("$defs", {}))
    return schema


def operations() -> tuple[Operation[Any], ...]:
    """Every operation of the control plane."""
    listed = (operation for module in _MODULES for operation in module.OPERATIONS)
    return (*listed, *chain.from_iterable(given("operations")), *OPERATIONS)


@OPERATIONS.add("GET /api/openapi.json", FieldDict, "OpenAPI 3.1.")
async def get_document(_request: ApiRequest[Parameters]) -> ApiResponse:
    """This document."""
    return ApiResponse(await off_loop(_document))


@cache
def _document() -> Schema:
    return openapi(operations())


def api_routes(runtime: Runtime, auth: Authenticator) -> list[Route]:
    """The routes of the control plane, each path with all its methods."""
    gate = Gate(auth)
    by_path = dict[str, list[Operation[Any]]]()
    for operation in operations():
        # The ids of patterns and experiments are free text, slashes included.
        path = re.sub(r"\{(pattern_id|experiment_id)\}", r"{\1:path}", operation.path)
        by_path.setdefault(path, []).append(operation)
    # A path without a parameter comes before those that would take it.
    paths = sorted(by_path, key=lambda path: "{" in path)
    return [Route(path, Resource(runtime, gate, by_path[path])) for path in paths]
