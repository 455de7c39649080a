"""Reads what an upstream says when it does not answer: under an error status, or under HTTP 200."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from gateway.data_files import read_toml
from gateway.values import Fields, Texts
from gateway.wire.coerce import as_int, as_mapping

# Why a request was refused: it is too long for the model, its content is not allowed, its form is
# wrong, or its answer does not say.
Kind = Literal["length", "policy", "shape", "unknown"]
# The members of an error object in OpenAI's, Anthropic's, Google's or AWS's form.
Refusal = Fields

_DATA = read_toml(__package__, "upstream_errors.toml")
STATUS_OF_TYPE: Mapping[Any, int] = {
    name: int(status) for status, names in _DATA["statuses"].items() for name in names.split()
}
_KINDS = {
    kind: re.compile("|".join(words), re.IGNORECASE | re.DOTALL)
    for kind, words in _DATA["kinds"].items()
}
_SAID_CHARACTERS = 4000  # of a refusal that are read


def name_of(api: str, status: int) -> str:
    """The name of an error of a status in an API."""
    names: Texts = _DATA[api]
    usual = names["5xx" if status >= 500 else "4xx"]
    return names.get(str(status), usual)


def refusal_of(answer: Any) -> Refusal | None:
    """The error that a JSON answer, or an event of a stream, reports; None if it reports none."""
    # Google wraps the error of a streamed call into an array.
    whole = answer[0] if isinstance(answer, list) and answer else answer
    if not isinstance(whole, dict):
        return None
    if named := whole.get("error"):
        error = {"message": named} if isinstance(named, str) else as_mapping(named)
        if any(error.values()):
            return {**whole, **error}
    said = (whole.get("type"), whole.get("object"), whole.get("status"))
    if "error" in said or "failed" in said:
        return whole
    return None


def status_of(refusal: Refusal) -> int:
    """The status that a refusal stands for which came under HTTP 200; 500 for an unknown error."""
    for name in ("code", "status", "type"):
        value = refusal.get(name)
        status = as_int(value, 0) or STATUS_OF_TYPE.get(str(value), 0)
        if 400 <= status < 600:
            return status
    if kind_of(refusal) in ("length", "policy"):
        return 400
    return 500


def kind_of(refusal: Refusal) -> Kind:
    """Why a request was refused, as far as the words say it."""
    said = " ".join(map(str, refusal.values()))[:_SAID_CHARACTERS]
    return next((kind for kind, words in _KINDS.items() if words.search(said)), "unknown")
