"""Edits of a request's messages, in terms of the messages the client sent."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gateway.values import FieldDict, Fields, Texts, Value

Message = Fields
MessageRole = Literal["system", "developer", "user"]


class SystemAppend(Value):
    """Append texts as separate blocks to the content of one message. Text content grows by a
    blank line and the text for each; a list of parts by one text part each; content that is
    absent, null or empty becomes the texts."""

    index: int  # of the message in the request, from 0
    texts: tuple[str, ...]  # in their order; each becomes a block of its own
    # the `cache_control` that the last part of the client's own content gets, so that the provider
    # caches up to there; None = leave the content's form as it is
    breakpoint: Texts | None = None


class InsertSystem(Value):
    """Put a system message before the client's first message."""

    texts: tuple[str, ...]  # in their order, with blank lines between


class InsertMessage(Value):
    """Put a new message between the client's."""

    position: int  # index of the client's message before which it stands; their count = at the end
    role: MessageRole  # as on the wire; `developer` for models that know no `system`
    text: str  # the whole content


class AppendToResult(Value):
    """Append texts to a message of the user or with results of tools, as `SystemAppend` does."""

    index: int  # of the message in the request, from 0
    texts: tuple[str, ...]  # in their order; each becomes a block of its own


Edit = SystemAppend | InsertSystem | InsertMessage | AppendToResult


def apply(messages: Sequence[Message], edits: Sequence[Edit]) -> list[FieldDict]:
    """New messages with the edits made; the given ones are not changed. The reference for other
    ways of making the edits, such as splicing bytes."""
    result = []
    inserts: dict[int, list[FieldDict]] = {}
    appends = {}
    for edit in edits:
        if isinstance(edit, InsertSystem):
            result.append({"role": "system", "content": "\n\n".join(edit.texts)})
        elif isinstance(edit, InsertMessage):
            inserted = {"role": edit.role, "content": edit.text}
            inserts.setdefault(edit.position, []).append(inserted)
        else:
            appends[edit.index] = edit
    for index, message in enumerate(messages):
        copy = dict(message)
        if index in appends:
            copy["content"] = _appended(copy.get("content"), appends[index])
        result += [*inserts.get(index, ()), copy]
    return [*result, *inserts.get(len(messages), ())]


def _appended(content: Any, edit: SystemAppend | AppendToResult) -> Any:
    parts = [{"type": "text", "text": text} for text in edit.texts]
    marker = edit.breakpoint if isinstance(edit, SystemAppend) else None
    if isinstance(content, list) and content:
        base = [dict(part) if isinstance(part, Mapping) else part for part in content]
        if marker and isinstance(base[-1], dict):
            base[-1] = {**base[-1], "cache_control": dict(marker)}
        return base + parts
    if not content:
        return "\n\n".join(edit.texts)
    if marker:
        base_part = {"type": "text", "text": content, "cache_control": dict(marker)}
        return [base_part, *parts]
    return "\n\n".join((content, *edit.texts))
