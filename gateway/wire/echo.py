"""Gives an answer that repeats a field of the request the value that the client sent. Pure."""

import json
import re
from hashlib import blake2b

from gateway.wire.sse import SSEDecoder

_FIELD = re.compile(r'"instructions"\s{0,99}:\s{0,99}(?=")')
_STRING = json.JSONDecoder()


class EchoFilter:
    """Replaces an echo of the `instructions` that were sent by the client's own; no other byte.
    `own` None: the client sent none."""

    name = b'"instructions"'  # what is in all that is changed

    def __init__(self, sent: str, own: str | None):
        cut = _cut(sent, own)
        self._hold(_digest(sent), cut, None if cut else json.dumps(own))

    def _hold(self, digest: str, cut: tuple[int, int] | None, own: str | None) -> None:
        self._digest = digest
        self._cut = cut
        self._own = own
        self._decoder = SSEDecoder()

    @property
    def size(self) -> int:
        """Characters that it keeps."""
        return len(self._digest) + len(self._own or "")

    def to_json(self) -> str:
        """Form for `from_json`, without a word of the texts; empty where that would take them."""
        if self._cut is None and self._own != "null":
            return ""
        return json.dumps([self._digest, self._cut])

    @classmethod
    def from_json(cls, text: str) -> "EchoFilter":
        """The filter that `to_json` described."""
        made = cls.__new__(cls)
        digest, cut = json.loads(text)
        made._hold(digest, (cut[0], cut[1]) if cut else None, None if cut else "null")
        return made

    def fresh(self) -> "EchoFilter":
        """The same filter, for another answer."""
        made = EchoFilter.__new__(EchoFilter)
        made._hold(self._digest, self._cut, self._own)
        return made

    def _replacement(self, value: object) -> str | None:
        """The client's own value as JSON, for the one that was sent; None for any other."""
        if not isinstance(value, str) or _digest(value) != self._digest:
            return None
        if self._cut is None:
            return self._own
        return json.dumps(value[: self._cut[0]] + value[self._cut[1] :])

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of a stream to send, of `chunk` and of what was held back before it."""
        if chunk.endswith(b"\n\n") and self._decoder.idle and chunk.find(self.name) < 0:
            return chunk
        return b"".join(self.whole(event.raw) for event in self._decoder.feed(chunk))

    def flush(self) -> bytes:
        """The bytes held back at the end of the stream."""
        return b"".join(self.whole(event.raw) for event in self._decoder.flush())

    def whole(self, body: bytes) -> bytes:
        """A body, or one event, with the client's own value."""
        if self.name not in body:
            return body
        text = body.decode("utf-8", "surrogateescape")
        out = []
        done = 0
        for found in _FIELD.finditer(text):
            try:
                value, end = _STRING.raw_decode(text, found.end())
            except ValueError:
                continue
            if (own := self._replacement(value)) is not None:
                out += [text[done : found.end()], own]
                done = end
        if not out:
            return body
        return "".join([*out, text[done:]]).encode("utf-8", "surrogateescape")


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _cut(sent: str, own: str | None) -> tuple[int, int] | None:
    """Span of the text that was put into `own`; None when `sent` is not one insertion away."""
    if own is None or len(sent) < len(own):
        return None
    low = 0
    high = len(own)
    while low < high:  # how much both begin with
        middle = (low + high + 1) // 2
        if sent.startswith(own[:middle]):
            low = middle
        else:
            high = middle - 1
    if sent.endswith(own[low:]):
        return (low, low + len(sent) - len(own))
    return None


OWN_ANSWER = "Stopped by the gateway: "
