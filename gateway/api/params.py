"""Parameters of an operation as a pydantic model: one declaration reads, checks and documents them.

Each field is one parameter of the query, of the path (where the path names it) or of a header."""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, TypeVar, get_args
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gateway.errors import BadRequest
from gateway.steering.experiments import ARMS
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.pattern import MAX_ID_CHARS
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores import queries
from gateway.stores.records import IMPORTED
from gateway.stores.totals import SEVERITIES

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
# Seconds since the epoch that every date library can show: the years 1970 to 9999.
_LAST_TIME = 253402300799


def described(text: str, default: Any = ...) -> Any:
    """A field with a description for the OpenAPI document; required without a default."""
    return Field(default, description=text)


class Parameters(BaseModel):
    """The parameters of one operation; a field with the default None may be absent. `in_headers`:
    the names of those that are request headers."""

    model_config = ConfigDict(frozen=True)
    in_headers: ClassVar[frozenset[str]] = frozenset()


M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation of a text that must be one of `options`, which may be computed."""

    options: Sequence[str]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.literal_schema(list(self.options))


def _whole_number(text: str) -> str:
    # int() and pydantic take more: other scripts' digits, underscores, `5.0`.
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise PydanticCustomError("whole_number", "must be a whole number")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise PydanticCustomError("flag", "must be true, false, 1 or 0")
    return _FLAGS[text.lower()]


def _epoch_seconds(text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        # fromisoformat refuses leap seconds, which ISO 8601 allows.
        try:
            time = datetime.fromisoformat(text.upper().replace(":60", ":59"))
            value = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            value = math.nan
    if not 0 <= value <= _LAST_TIME:
        example = "2026-05-01T09:00:00Z"
        raise PydanticCustomError("time", f"must be seconds since the epoch or like {example}")
    return value


Text = Annotated[str, Field(max_length=1000)]
PathText = Annotated[str, Field(min_length=1, max_length=1000)]
DIGITS = BeforeValidator(_whole_number)  # put behind `Field(ge=..., le=...)` of an integer

Flag = Annotated[bool, BeforeValidator(_flag)]
_TIMES = [
    {"type": "number", "minimum": 0, "maximum": _LAST_TIME},
    {"type": "string", "format": "date-time"},
]
Time = Annotated[float, BeforeValidator(_epoch_seconds), WithJsonSchema({"anyOf": _TIMES})]
"""Seconds since the epoch, or an ISO 8601 date or time, UTC where it names no zone."""


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


def read_model(model: type[M], values: Mapping[str, Any]) -> M:
    """`values` as a model. Raises: BadRequest, naming the first key that is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or "body"
        reason = first["msg"].removeprefix("Input ")
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


STATES = tuple(state.value for state in FSMState)
Arm = Annotated[str, OneOf(ARMS)]
RUN_MODES = (queries.LIVE, IMPORTED, *ARMS)


class TenantParameter(Parameters):
    """The tenant whose data is asked for."""

    tenant: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = described(
        "Only this tenant's data; a tenant's key sees no other.", None
    )


PERIODS: Mapping[str, float] = {
    "hour": 3600,
    "today": 86400,
    "day": 86400,
    "week": 7 * 86400,
    "month": 30 * 86400,
}


class RunFilters(TenantParameter):
    """Filter of runs; one that is absent or empty selects all. API, pages, commands and exports
    have each of these filters; its description goes on after "Only runs"."""

    search: Text | None = described(
        "In whose task, words of the user and errors all these words are; a word may be the"
        ' beginning of a longer one, and `"several words"` stand together.',
        None,
    )
    severity: Annotated[str, OneOf(SEVERITIES)] | None = described(
        "That came to this at worst.", None
    )
    project: Text | None = described("Of this project: with the tag `project` of this value.", None)
    period: Annotated[str, OneOf(tuple(PERIODS))] | None = described(
        "Started in the last hour, since midnight (UTC), or in the last 24 hours, 7 or 30 days.",
        None,
    )
    conversation_id: Text | None = described("Of one conversation.", None)
    agent: Text | None = described("Of this client, as its user agent names it.", None)
    model: Text | None = described("That requested this model last, or sent a call to it.", None)
    state: Annotated[str, OneOf(STATES)] | None = described(
        "In this state now, or at any step.", None
    )
    failure_type: Text | None = described("With a step of this failure type.", None)
    monitor: Text | None = described("In which this monitor fired.", None)
    intervention: Annotated[str, OneOf(tuple(KIND_LABELS))] | None = described(
        "In which a person stepped in like this.", None
    )
    experiment: Text | None = described("Of this experiment.", None)
    arm: Arm | None = described("In this arm.", None)
    mode: Annotated[str, OneOf(RUN_MODES)] | None = described(
        "Steered in this mode, or `imported` from a session log; `live`: all but those. Sums are of"
        " live runs where no mode is given.",
        None,
    )
    outcome: Annotated[str, OneOf((*queries.OUTCOMES, queries.UNFINISHED))] | None = described(
        "With this outcome; `unfinished`: none was reported.", None
    )
    stopped: Annotated[str, OneOf(queries.STOPPED_BY)] | None = described(
        "Stopped or paused by this; `yes`: by any of these.", None
    )
    since: Time | None = described("Started at or after this time.", None)
    until: Time | None = described("Started before this time.", None)
    task: Text | None = described("Whose task contains this text, ignoring case.", None)
    key: Text | None = described("Made with the gateway key of this name.", None)
    tag: Text | None = described(
        "With these tags: `team=web,env`; a name alone is any value.", None
    )


Cursor = Annotated[str | None, Field(description="Null on the last page.")]


class PageParameters(Parameters):
    """One page of a list."""

    limit: Annotated[
        int, Field(ge=1, le=queries.MAX_PAGE, description="Rows per page."), DIGITS
    ] = 50
    cursor: Text | None = described("`next_cursor` of the previous page.", None)


class SortParameters(PageParameters):
    """One page of a list that can be sorted."""

    sort: Annotated[str, OneOf(tuple(queries.SORT_KEYS))] = described(
        "The key to sort by.", "started_at"
    )
    order: Annotated[str, OneOf(("desc", "asc"))] = described("The direction.", "desc")


def page_request(values: Mapping[str, Any]) -> queries.PageRequest:
    """The page that the values of SortParameters describe."""
    descending, keys = values["order"] == "desc", ("limit", "sort", "cursor")
    return queries.PageRequest(descending=descending, **{key: values[key] for key in keys})


def choices_of(name: str) -> Sequence[str]:
    """The values that a filter of runs can have; empty where it takes any."""
    parts = get_args(RunFilters.model_fields[name].annotation)
    marks = [mark for part in parts for mark in getattr(part, "__metadata__", ())]
    return next((mark.options for mark in marks if isinstance(mark, OneOf)), ())


def run_filter(values: Mapping[str, Any], tenant: str | None) -> queries.RunFilter:
    """The filter that parameter values describe, within `tenant`; empty texts select all."""
    given = {n: v for n in RunFilters.model_fields if (v := values.get(n)) not in (None, "")}
    tags = read_tag_filter(given.pop("tag", ""))
    if project := given.pop("project", None):
        tags = (*tags, ("project", project))
    if period := given.pop("period", None):
        now = time.time()
        begun = now - now % 86400 if period == "today" else now - PERIODS[period]
        given["since"] = max(begun, given.get("since", 0.0))
    given |= {"tenant": tenant, "key_name": given.pop("key", None), "tags": tags}
    return queries.RunFilter(**given)


def read_tag_filter(text: str) -> tuple[tuple[str, str | None], ...]:
    """`team=web,env` as (name, value) pairs; a name alone stands for any value."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return tuple((name.strip().lower(), value.strip() if eq else None) for name, eq, value in pairs)
