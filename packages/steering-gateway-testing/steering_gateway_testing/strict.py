"""A provider that refuses what its API reference does not name, as the newest models' APIs do.

The reference is that of the official packages: the types of the parameters that they send.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import ReadOnly, get_type_hints, is_typeddict

from steering_gateway_testing import Fault, FaultKind, ReceivedRequest, Reply

OWN_FIELDS: Mapping[str, frozenset[str]] = {
    "codex": frozenset(
        {"client_metadata", "internal_chat_message_metadata_passthrough", "id", "status"}
    ),
    "aider": frozenset({"temperature"}),
    "mini": frozenset({"annotations", "provider_specific_fields"}),
}
"""Fields that clients send besides those of the reference: Codex on bodies, items and messages,
aider a parameter that Anthropic's newest models no longer have, mini-swe-agent what LiteLLM adds to
a reply. Seen in Codex 0.169, aider 0.86 and mini-swe-agent 2.4."""

MAX_MARKERS = 4
"""Cache markers that Anthropic's API takes in one request. Source: its prompt caching page."""

_QUALIFIERS = (Required, NotRequired, ReadOnly, Annotated)
_OTHER = "is none of"
_PLAIN = (str, int, float, bool, type(None))

Answers = Callable[[ReceivedRequest], Reply | Fault]


class StrictProvider:
    """Answers as `answers` does, and refuses with 400 a request with a field too many.

    `own`: names of fields that a client sends besides the documented ones.
    """

    def __init__(self, answers: Answers, own: frozenset[str] = frozenset()) -> None:
        self._answers = answers
        self._own = own
        self.refused: list[str] = []
        self.accepted: list[ReceivedRequest] = []

    def __call__(self, request: ReceivedRequest) -> Reply | Fault:
        """One entry of a script."""
        wrong = faults_of(request, self._own)
        if not wrong:
            self.accepted.append(request)
            return self._answers(request)
        self.refused += wrong
        return Fault(FaultKind.BAD_REQUEST, message="; ".join(wrong))


def faults_of(request: ReceivedRequest, own: frozenset[str] = frozenset()) -> list[str]:
    """What the provider's reference does not allow in a request; none for a route without one."""
    body = next((t for end, t in _bodies().items() if request.path.endswith(end)), None)
    if request.method != "POST" or body is None:
        return []
    allowed = tuple(f".{name}: unknown" for name in own)
    wrong = [each for each in _wrong(request.fields, body, "") if not each.endswith(allowed)]
    markers = sum(1 for _ in _markers(request.fields))
    if request.path.endswith("/messages") and markers > MAX_MARKERS:
        wrong.append(f"{markers} blocks with cache_control")
    return wrong


@functools.cache
def _bodies() -> Mapping[str, Any]:
    """The parameters of each route, by the end of its path. Loads both packages."""
    from anthropic.types.beta import message_create_params as messages
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    return {
        "/chat/completions": chat.CompletionCreateParams,
        "/responses": responses.ResponseCreateParams,
        "/messages": messages.MessageCreateParams,
    }


def _markers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if value.get("cache_control"):
            yield value
        for name, each in value.items():
            if name not in ("input", "input_schema"):  # a tool's own words
                yield from _markers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _markers(each)


def _wrong(value: Any, hint: Any, at: str) -> Iterator[str]:
    """The faults of a value, as a path and a reason."""
    origin = get_origin(hint)
    if origin in _QUALIFIERS:
        yield from _wrong(value, get_args(hint)[0], at)
    elif origin in (Union, types.UnionType):
        yield from _none_fits(value, get_args(hint), at)
    elif is_typeddict(hint):
        yield from _wrong_fields(value, hint, at)
    elif origin is Literal:
        if value not in get_args(hint):
            yield f"{at}: {value!r} {_OTHER} {get_args(hint)}"
    elif origin is dict or hint is dict:
        if not isinstance(value, dict):
            yield f"{at}: not an object"
    elif origin is not None:  # each of the packages' kinds of sequence
        if not isinstance(value, list):
            yield f"{at}: not an array"
            return
        for index, each in enumerate(value):
            yield from _wrong(each, get_args(hint)[0], f"{at}[{index}]")
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        yield f"{at}: no object of Python"  # another way to give the package the same dict
    elif hint in _PLAIN and not isinstance(value, _accepted(hint)):
        yield f"{at}: {type(value).__name__} for {hint.__name__}"


def _accepted(hint: type) -> tuple[type, ...]:
    return (int, float) if hint is float else (hint,)


def _none_fits(value: Any, hints: tuple[Any, ...], at: str) -> Iterator[str]:
    """The faults by the alternative that is meant, which is the one with the fewest."""
    faults = []
    for hint in hints:
        found = list(_wrong(value, hint, at))
        if not found:
            return
        faults.append(found)
    # Two kinds of object differ in a field with a fixed value.
    here = f"{at}: "
    yield from min(faults, key=lambda f: (f[0].startswith(here), _OTHER in "".join(f), len(f)))


def _wrong_fields(value: Any, hint: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: not an object"
        return
    hints = _fields(hint)
    for name in hint.__required_keys__ - value.keys():
        yield f"{at}.{name}: missing"
    for name, each in value.items():
        if name not in hints:
            yield f"{at}.{name}: unknown"
        else:
            yield from _wrong(each, hints[name], f"{at}.{name}")


@functools.cache
def _fields(hint: Any) -> Mapping[str, Any]:
    return get_type_hints(hint, include_extras=True)
