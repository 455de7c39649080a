"""Records without their texts or their secrets, and records that any database can encode."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gateway.config.storage import StorageSettings
from gateway.steering.transcript.steps import Action
from gateway.stores.records import CallRecord, ItemRecord, RunUpdate, StepContent, StepRow
from gateway.text.secrets import find_secrets, mask_repeated, mask_secrets, may_have_secrets

T = TypeVar("T")

MAX_INT = 2**63 - 1

_OMITTED = re.compile(r"\[omitted: [0-9]+ characters, sha256 [0-9a-f]{32}\]")


def redaction(settings: StorageSettings) -> Callable[[CallRecord], CallRecord]:
    """Function that a store applies to a record before it writes it. It takes time in proportion
    to the texts, so it is not called on the event loop."""
    if not settings.store_content:
        return without_content
    return without_secrets if settings.mask_secrets else _unchanged


def _unchanged(call: CallRecord) -> CallRecord:
    return call


def omit(text: str) -> str:
    """Length and digest in place of the text; an empty text stays empty.

    Equal texts have equal digests, so a guessed text can be confirmed: it hides content, not
    secrets. A text that was omitted before stays as it is: a record that waited in a file comes
    here twice.
    """
    if not text or _OMITTED.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"[omitted: {len(text)} characters, sha256 {digest}]"


def without_content(call: CallRecord) -> CallRecord:
    """`call` with every text of client, model and guidance replaced by its length and digest.

    Names (tools, models, agents) and numbers are kept; output items, which are only text, are
    removed. The conversation's `state` is kept: the next request needs it.
    """
    return replace(
        call,
        runs=tuple(replace(run, task_preview=omit(run.task_preview)) for run in call.runs),
        steps=tuple(_changed(step, omit) for step in call.steps),
        injections=tuple(replace(row, text=omit(row.text)) for row in call.injections),
        items=(),
    )


def without_secrets(call: CallRecord) -> CallRecord:
    """`call` with what looks like a secret masked in every text.

    An output item in which there is one is left out: its bytes are part of the history's digests,
    so a masked one would be another item. The conversation's `state` is kept as it is; whoever
    makes it masks the texts in it.
    """
    return replace(
        call,
        runs=tuple([_run_without_secrets(run) for run in call.runs]),
        steps=tuple([_step_without_secrets(step) for step in call.steps]),
        injections=tuple([replace(row, text=mask_repeated(row.text)) for row in call.injections]),
        items=tuple([item for item in call.items if not _has_secret(item)]),
    )


def _run_without_secrets(run: RunUpdate) -> RunUpdate:
    preview = mask_repeated(run.task_preview)
    return run if preview == run.task_preview else replace(run, task_preview=preview)


def _has_secret(item: ItemRecord) -> bool:
    return bool(find_secrets(item.content.decode("utf-8", "replace")))


def _step_without_secrets(step: StepRow) -> StepRow:
    if not may_have_secrets("\n".join(_texts(step))):
        return step  # as nearly all are: one search for all of its texts
    return _changed(step, mask_secrets)


def _texts(step: StepRow) -> list[str]:
    content = step.content
    texts = [*step.evidence.values()]
    if content is not None:
        texts += [message.text for message in content.messages]
        texts += (content.thought, content.reasoning, content.reply_text)
        for action in (*content.actions, *content.reply_actions):
            texts += (action.arguments, action.observation)
    return texts


def _changed(step: StepRow, change: Callable[[str], str]) -> StepRow:
    """The step with each of its texts changed."""
    content = step.content
    if content is not None:
        content = StepContent(
            messages=tuple(replace(m, text=change(m.text)) for m in content.messages),
            thought=change(content.thought),
            reasoning=change(content.reasoning),
            actions=tuple(_changed_action(action, change) for action in content.actions),
            prompted=content.prompted,
            reply_text=change(content.reply_text),
            reply_actions=tuple(_changed_action(a, change) for a in content.reply_actions),
        )
    evidence = {name: change(text) for name, text in step.evidence.items()}
    return replace(step, content=content, evidence=evidence)


def _changed_action(action: Action, change: Callable[[str], str]) -> Action:
    arguments, observation = change(action.arguments), change(action.observation)
    if arguments is action.arguments and observation is action.observation:
        return action
    return replace(action, arguments=arguments, observation=observation)


def encodable(value: T) -> T:
    """`value` with everything that databases cannot encode replaced: unpaired surrogates become
    U+FFFD, integers beyond 64 bits the nearest that fits.

    A client's JSON may contain both. Slow, so it is used only for records that were refused.
    """
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
        names = value.__struct_fields__
        changed = {name: _encodable(getattr(value, name)) for name in names}
        return replace(value, **changed)
    return value
