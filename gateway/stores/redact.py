"""Records without their texts or their secrets, and records that any database can encode."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.config.storage import StorageSettings
from gateway.stores.records import CallRecord, StepRow
from gateway.text.secrets import find_secrets, mask_repeated, mask_secrets, may_have_secrets
from gateway.values import T

MAX_INT = 2**63 - 1
# The fields of a step, and of what is in it, that hold texts of client or model.
_TEXTS = frozenset(
    {
        "content",
        "messages",
        "text",
        "thought",
        "reasoning",
        "actions",
        "arguments",
        "observation",
        "reply_text",
        "reply_actions",
        "human",
        "words",
        "evidence",
        "reason",
        "alarms",
    }
)
# What is stored in place of a text; its group is the number of the text's characters.
OMITTED = re.compile(r"\[omitted: ([0-9]+) characters, sha256 [0-9a-f]{32}\]")


def redaction(settings: StorageSettings) -> Callable[[CallRecord], CallRecord]:
    """Function that a store applies to a record before it writes it. Slow for long texts, so it is
    not called on the event loop."""
    if not settings.store_content:
        return without_content
    if settings.mask_secrets:
        return without_secrets
    return lambda call: call


def omit(text: str) -> str:
    """Length and digest in place of the text; an empty text stays empty. A guessed text can be
    confirmed by its digest: it hides content, not secrets. A text that was omitted before stays as
    it is: a record that waited in a file comes here twice."""
    if not text or OMITTED.fullmatch(text):
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"[omitted: {len(text)} characters, sha256 {digest}]"


def without_content(call: CallRecord) -> CallRecord:
    """`call` with every text of client, model and guidance replaced by its length and digest, and
    without output items. Names and numbers are kept, and the conversation's `state`, which the next
    request needs."""
    return replace(
        call,
        conversation=replace(call.conversation, task=omit(call.conversation.task)),
        runs=tuple(replace(run, task_preview=omit(run.task_preview)) for run in call.runs),
        steps=tuple(_changed(step, omit) for step in call.steps),
        injections=tuple(replace(row, text=omit(row.text)) for row in call.injections),
        items=(),
    )


def without_secrets(call: CallRecord) -> CallRecord:
    """`call` with what looks like a secret masked in every text. An output item with a secret is
    left out: its bytes are part of the history's digests. The conversation's `state` is kept;
    whoever makes it masks the texts in it."""
    return replace(
        call,
        conversation=replace(call.conversation, task=mask_repeated(call.conversation.task)),
        runs=tuple([replace(r, task_preview=mask_repeated(r.task_preview)) for r in call.runs]),
        # Nearly all steps have none: one search for all texts of a step.
        steps=tuple(
            [
                _changed(step, mask_secrets) if may_have_secrets("\n".join(_texts(step))) else step
                for step in call.steps
            ]
        ),
        injections=tuple([replace(row, text=mask_repeated(row.text)) for row in call.injections]),
        items=tuple(
            [i for i in call.items if not find_secrets(i.content.decode("utf-8", "replace"))]
        ),
    )


def _texts(step: StepRow) -> list[str]:
    content = step.content
    texts = [*step.evidence.values(), step.reason, *step.alarms]
    if content is not None:
        texts += [message.text for message in content.messages]
        texts += [act.words for act in content.human]
        texts += (content.thought, content.reasoning, content.reply_text)
        for action in (*content.actions, *content.reply_actions):
            texts += (action.arguments, action.observation)
    return texts


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A value with the texts in its fields `_TEXTS` changed, however deep."""
    match value:
        case str():
            return change(value)
        case tuple():
            return tuple([_changed(each, change) for each in value])
        case Mapping():
            return {name: _changed(each, change) for name, each in value.items()}
        case Struct():
            names = [name for name in value.__struct_fields__ if name in _TEXTS]
            return replace(value, **{n: _changed(getattr(value, n), change) for n in names})
    return value


def encodable(value: T) -> T:
    """`value` with what databases cannot encode replaced: unpaired surrogates become U+FFFD,
    integers beyond 64 bits the nearest that fits. Slow, so it is used only for records that were
    refused."""
    return _encodable(value)  # type: ignore[no-any-return]


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case bool():
            return value
        case int():
            return max(-MAX_INT, min(MAX_INT, value))
        case tuple() | list():
            return tuple(map(_encodable, value))
        case Mapping():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, Struct):
        changed = {name: _encodable(getattr(value, name)) for name in value.__struct_fields__}
        return replace(value, **changed)
    return value
