"""Envelopes: bodies that have the conversation in an object of its own, beside the model.

The inner object is read and changed like a body; what is around it stays byte for byte."""

import json
from urllib.parse import quote

from msgspec.structs import asdict

from gateway.dialects.base import Addressed
from gateway.errors import BadRequest
from gateway.wire.coerce import text_at
from gateway.wire.parsing import Loads, Span, refuse_repeated, skim

# Member of a request to Code Assist that is one of the Gemini API. Source: Gemini CLI.
_REQUEST = "request"


class Enveloped(Addressed):
    """A request whose path names how it is answered, and whose envelope names the model."""

    whole: bytes  # the envelope, as the client sent it
    body: bytes  # the inner object
    body_at: Span  # where it is
    model_at: Span  # where the value of the model is

    def at(self, model: str, *, seat: bool = True) -> str:
        return self.before

    def packed(self, body: bytes, model: str) -> bytes:
        if body is self.body and model == self.model:
            return self.whole
        changes = [(self.body_at, body)]
        if model != self.model:
            changes.append((self.model_at, json.dumps(model).encode()))
        whole = self.whole
        for (start, end), text in sorted(changes, reverse=True):
            whole = whole[:start] + text + whole[end:]
        return whole


def opened(asked: Addressed, raw: bytes, loads: Loads) -> Enveloped:
    """The request in an envelope. Raises BadRequest: `raw` is no object, has a member twice, or
    lacks one that is needed."""
    refuse_repeated(raw)
    members, spans = skim(raw, loads)
    for name in (_REQUEST, "model"):
        if name not in spans:
            raise BadRequest(f"{name!r} is required", param=name)
    # Turns of a sub-agent have a number; prompts of a main agent none, or one behind eight signs.
    agent, _, turn = text_at(members, "user_prompt_id").partition("#")
    [body_at] = spans[_REQUEST]
    [model_at] = spans["model"]
    named = quote(text_at(members, "model"), safe=":@")
    return Enveloped(
        **{**asdict(asked), "named": named, "agent": agent * turn.isdecimal()},
        whole=raw,
        body=raw[slice(*body_at)],
        body_at=body_at,
        model_at=model_at,
    )
