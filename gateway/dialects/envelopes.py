"""Envelopes: bodies that have the conversation in an object of its own, beside the model.

The inner object is read and changed like a body; what is around it stays byte for byte. A host of
the Gemini API is sent the inner object, and what it answers is put into an envelope."""

import json
import re
from urllib.parse import quote

from msgspec.structs import asdict

from gateway.dialects.base import Addressed
from gateway.dialects.own_answers import ANSWER
from gateway.errors import BadRequest
from gateway.wire.coerce import text_at
from gateway.wire.echo import EchoFilter
from gateway.wire.parsing import Loads, Span, refuse_repeated, skim
from gateway.wire.sse import SSEDecoder

# Member of a request to Code Assist that is one of the Gemini API. Source: Gemini CLI.
_REQUEST = "request"
# The object in an event or a body, behind what is before it, unless it is an error.
_CONTENT = re.compile(rb'\A([^\[{<]*+)(\{(?!\s*+"error").*\})', re.DOTALL)


class Enveloped(Addressed):
    """A request whose path names how it is answered, and whose envelope names the model."""

    whole: bytes  # the envelope, as the client sent it
    body: bytes  # the inner object
    body_at: Span  # where it is
    model_at: Span  # where the value of the model is

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


class AnswerEnvelope(EchoFilter):
    """Puts each event of an answer, or a body, into the envelope of Code Assist; no other byte
    changes, and an error has none."""

    name = b"{"

    def __init__(self) -> None:
        self._decoder = SSEDecoder()

    def whole(self, body: bytes) -> bytes:
        return _CONTENT.sub(rb'\1{"%b": \2}' % ANSWER.encode(), body)


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
    read = asdict(asked) | {"named": named, "agent": agent * turn.isdecimal()}
    if asked.stream and b"alt=sse" not in asked.query:  # an array has no place for envelopes
        read["elsewhere"] = None
    return Enveloped(
        **read,
        whole=raw,
        body=raw[slice(*body_at)],
        body_at=body_at,
        model_at=model_at,
    )
