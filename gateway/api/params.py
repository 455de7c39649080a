"""Parameters of an operation as a pydantic model: one declaration reads, checks and documents them.

Each field is one parameter of the query, of the path (where the path names it) or of a header."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic_core import CoreSchema, core_schema

from gateway.core.pattern import MAX_ID_CHARS
from gateway.errors import BadRequest
from gateway.stores import filters, lists
from gateway.stores.sql.audit_log import persons_name
from gateway.values import FieldDict, Fields

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Parameters(BaseModel):
    """The parameters of one operation; a field with the default None may be absent. `in_headers`:
    the names of those that are request headers."""

    model_config = ConfigDict(frozen=True)
    in_headers: ClassVar[frozenset[str]] = frozenset()


Author = Annotated[str, Field(max_length=80), AfterValidator(persons_name)]


class Sent(BaseModel):
    """A body of a request, which has no other keys than these."""

    model_config = ConfigDict(extra="forbid")


M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=Parameters)


class OneOf(Struct, frozen=True):
    """Annotation of a text that must be one of `options`, which may be computed."""

    options: Sequence[str]  # may be computed, after the annotation was made

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.literal_schema(list(self.options))


def _whole_number(text: str) -> str:
    # int() and pydantic take more: other scripts' digits, underscores, `5.0`.
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise ValueError("must be a whole number")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError("must be true, false, 1 or 0")
    return _FLAGS[text.lower()]


Text = Annotated[str, Field(max_length=1000)]
PathText = Annotated[str, Field(min_length=1, max_length=1000)]
DIGITS = BeforeValidator(_whole_number)  # put behind `Field(ge=..., le=...)` of an integer

Flag = Annotated[bool, BeforeValidator(_flag)]
_TIMES = [
    {"type": "number", "minimum": 0, "maximum": filters.LAST_TIME},
    {"type": "string", "format": "date-time"},
]
# Seconds since the epoch, or an ISO 8601 date or time, UTC where it names no zone.
Time = Annotated[float, BeforeValidator(filters.read_time), WithJsonSchema({"anyOf": _TIMES})]


def read_parameters(
    model: type[P], query: bytes, elsewhere: Mapping[str, str | None] | None = None
) -> P:
    """The parameters of a request; `elsewhere`: of its path and headers, None if absent. Raises:
    BadRequest, also for an unknown one: ignoring a filter would look like applying it."""
    elsewhere = elsewhere or {}
    known = [name for name in names_of(model) if name not in elsewhere]
    values = {name: text for name, text in elsewhere.items() if text is not None}
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has too many parameters", param="query") from None
    for name, text in given:
        refuse_unknown(name, known)
        if name in values:
            raise BadRequest(f"{name}: given twice", param=name)
        values[name] = text
    return read_model(model, values)


def read_model(model: type[M], values: Fields) -> M:
    """`values` as a model. Raises: BadRequest, naming the first key that is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or "body"
        reason = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
        message = f"{name}: {reason[:1].lower()}{reason[1:]}"
        raise BadRequest(message, param=name) from None


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Refuse a request for what a store, or a reader of texts, says of one of its parameters."""
    try:
        yield
    except ValueError as error:
        raise BadRequest(str(error), param=param) from None


def refuse_unknown(name: str, known: Sequence[str]) -> None:
    """Refuse a parameter or key that is not among `known`. Raises: BadRequest."""
    if name not in known:
        choices = ", ".join(known) or "none"
        raise BadRequest(f"{name[:80]!r} is not known here; known: {choices}", param=name[:80])


def names_of(model: type[BaseModel]) -> list[str]:
    """The names of a model's fields as a request writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]


class TenantParameter(Parameters):
    """The tenant whose data is asked for."""

    # only this tenant's data; a tenant's key sees no other
    tenant: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None


def _filter(name: str, text: str, choices: Sequence[str]) -> Any:
    plain: Any = Time if name in filters.TIMES else Text
    kind = plain
    if choices:
        kind = Annotated[str, OneOf(choices), BeforeValidator(filters.in_words)]
    return (kind | None, Field(None, description=text))


_FILTERS: FieldDict = {n: _filter(n, *of) for n, of in filters.FILTERS.items()}


class RunFilters(create_model("_", __base__=TenantParameter, **_FILTERS)):  # type: ignore[misc]
    """Filter of runs; one that is absent or empty selects all."""


Cursor = Annotated[str | None, Field(description="Null on the last page.")]


class PageParameters(Parameters):
    """One page of a list."""

    limit: Annotated[int, Field(ge=1, le=lists.MAX_PAGE, description="Rows per page."), DIGITS] = 50
    cursor: Text | None = None  # `next_cursor` of the previous page


class SortParameters(PageParameters):
    """One page of a list that can be sorted."""

    sort: Annotated[str, OneOf(tuple(lists.SORT_KEYS))] = "started_at"  # the key to sort by
    order: Annotated[str, OneOf(("desc", "asc"))] = "desc"  # the direction


def page_request(values: Fields) -> lists.PageRequest:
    """The page that the values of SortParameters describe."""
    descending = values["order"] == "desc"
    keys = ("limit", "sort", "cursor")
    return lists.PageRequest(descending=descending, **{key: values[key] for key in keys})
