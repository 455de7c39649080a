"""Input that a call paid again because the provider's prompt cache did not have it, and why.

Such a call is compared with the one before it in its conversation, by what the client sent. The
bodies are in memory up to a limit; what is over it, and what another process has answered, is not
compared."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from gateway.core.edits import Edit
from gateway.steering.identity import MatchKind
from gateway.text.secrets import mask_secrets
from gateway.upstream.model_costs import lost_usd
from gateway.values import FieldDict
from gateway.wire.usage import Loss, TokenUsage, tokens_of

if TYPE_CHECKING:
    from gateway.calls.call import Call

# The least input that counts as paid again.
LEAST = 1024  # tokens. Source: OpenAI and Anthropic cache no shorter prefix
SHARE = 0.1  # of a prompt: less is the end that changes, or rounding to the cache's blocks

TOOLS = "tools"
SYSTEM = "system prompt"
_SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
_INSTRUCTING = ("system", "developer")
_EACH = 5  # changes in a row from which on a prompt changes at every call
_MOST_CLIENTS = 1000  # that wait to be reported: without a receiver nobody takes them
_MOST_BYTES = 32 * 2**20
# Life of an entry that is not used, in seconds. Source: Anthropic's "Prompt caching", 5 minutes or
# the `ttl` of an hour; OpenAI's is 5 to 10 minutes.
LIFETIME_S = 300.0
HOUR_S = 3600.0  # of one that was written for an hour
_APART = (MatchKind.SIDE, MatchKind.SUMMARY, MatchKind.RETRY)
_AROUND = 40  # characters quoted on either side of the first difference


class _Sent(Struct):
    """A call that the next one is compared with."""

    raw: bytes  # the client's body
    edits: tuple[Edit, ...]  # what the gateway added
    model: str  # whose prices hold
    at: float  # end of its answer, in seconds of the monotonic clock
    tokens: TokenUsage  # as the provider reported them
    changes: int = 0  # calls in a row, up to this one, that paid again for a changed prompt


class SentPrompts:
    """The latest prompt of each conversation."""

    def __init__(self, unsteady: dict[tuple[str, str], FieldDict]):
        self._unsteady = unsteady  # see `Runtime`
        self._sent: dict[str, _Sent] = {}  # the newest last
        self._bytes = 0

    def lost(self, call: "Call", at: float) -> Loss:
        """The loss of a call whose answer ended at `at` (seconds of the monotonic clock)."""
        decision = call.decision
        raw = call.request.raw
        upstream = call.exchange.upstream
        if decision is None or len(raw) > _MOST_BYTES:
            return Loss()
        match = decision.resolved.match
        if match.kind in _APART:
            return Loss()
        before = self._sent.get(match.parent or decision.conversation.id)
        now = _Sent(
            raw=raw,
            edits=call.delivery.edits,
            model=call.billed_model,
            at=at,
            tokens=upstream.tokens,
        )
        self._keep(decision.conversation.id, now)
        if before is None or upstream.usage_estimated:
            return Loss()
        size = now.tokens.input or 0
        lost = min(before.tokens.input or 0, size) - (now.tokens.cached or 0)
        if lost < max(LEAST, SHARE * size):
            return Loss()
        part, *values = changed(before.raw, raw, call.request.list_key)
        if not (part or before.tokens.cached or before.tokens.cache_write):
            return Loss()  # a provider that caches nothing
        cause = part
        if before.model != now.model:
            cause = "model"
        elif not part:
            cause = _other_cause(before, now, call)
        if cause == part:
            now.changes = before.changes + 1
        if now.changes >= _EACH and len(self._unsteady) < _MOST_CLIENTS:
            facts = {"run_id": decision.run_id, "part": part, "calls": now.changes}
            if part in (TOOLS, SYSTEM) and call.services.settings.storage.store_content:
                facts["lines"] = _excerpts(values)
            self._unsteady[call.tenant, call.control.agent] = facts
        if now.tokens.cached is None:
            lost = 0  # nobody says how much
        usd = 0.0
        if info := call.services.catalogue.info(now.model):
            counts = tokens_of(upstream.usage or {})
            usd = lost_usd(
                lost,
                info.rates,
                written=counts["cache_write"],
                written_1h=counts["cache_write_1h"],
            )
        return Loss(cause=cause, tokens=lost, usd=usd)

    def _keep(self, name: str, sent: _Sent) -> None:
        self._bytes += len(sent.raw)
        if old := self._sent.pop(name, None):
            self._bytes -= len(old.raw)
        self._sent[name] = sent
        while self._bytes > _MOST_BYTES:
            oldest = self._sent.pop(next(iter(self._sent)))
            self._bytes -= len(oldest.raw)


def _other_cause(before: _Sent, now: _Sent, call: "Call") -> str:
    """Why the provider did not have a prompt that begins as before. What stands before a text of
    the gateway cannot be lost through it; a pause ends when the request of `call` arrives."""
    edits = [e for e in (*before.edits, *now.edits) if (e in before.edits) != (e in now.edits)]
    places = [getattr(each, "index", getattr(each, "position", 0)) for each in edits]
    read = (now.tokens.cached or 0) / (now.tokens.input or 1)
    if places and min(places) <= (read + SHARE) * len(call.request.own_messages):
        return "text of the gateway"
    life_s = LIFETIME_S
    if b'"1h"' in before.raw:
        life_s = HOUR_S
    if call.exchange.timing.started - before.at > life_s:
        return "pause"
    return "provider"


def changed(before: bytes, now: bytes, list_key: str) -> tuple[str, Any, Any]:
    """The first part of the body `before` with which `now` does not begin: its name, as it was and
    as it is; the name is "" when it has all of it. Marks of what is to be cached are no part."""
    end = before.rfind(b"]")  # mostly of the messages, whose list grows
    if now.startswith(before[:end]) and now.endswith(before[end:]):
        return "", None, None
    old = _parts(before, list_key)
    new = _parts(now, list_key)
    for (name, was), (_, is_now) in zip(old, new, strict=False):
        if was != is_now and _plain(was) != _plain(is_now):
            if name not in (TOOLS, SYSTEM) and len(new) < len(old):
                name = "compaction"
            return name, was, is_now
    return "", None, None


def _parts(raw: bytes, list_key: str) -> list[tuple[str, Any]]:
    """The parts of a prompt by name, in the order of providers: tools, instructions, messages."""
    body = orjson.loads(raw)
    parts = [(TOOLS, body.get("tools")), (SYSTEM, [body.get(key) for key in _SYSTEM_KEYS])]
    listed = body.get(list_key) or ()
    if isinstance(listed, str):  # as Responses take it
        listed = [listed]
    for number, message in enumerate(listed, start=1):
        name = f"message {number}"
        if number == 1 and isinstance(message, dict) and message.get("role") in _INSTRUCTING:
            name = SYSTEM
        parts.append((name, message))
    return parts


def _plain(value: Any) -> Any:
    """The value without marks of what is to be cached, and with text content as a part."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _plain(each) for key, each in value.items() if key != "cache_control"}
    if isinstance(text := found.get("content"), str):
        found["content"] = [{"type": "text", "text": text}]
    return found


def _excerpts(values: Sequence[Any]) -> list[str]:
    """The texts around the first difference, secrets masked."""
    texts = [mask_secrets(orjson.dumps(each).decode()) for each in values]
    at = max(0, len(os.path.commonprefix(texts)) - _AROUND)  # noqa: RUF071 - of texts, not of paths
    return [f"… {text[at : at + 2 * _AROUND]} …" for text in texts]
