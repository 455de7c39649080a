"""Recorded runs, one JSON object per line: transcripts of any agent as chat messages, and what
`gateway runs export` writes. The forms: `gateway.offline.recordings`."""

from collections.abc import Iterable

import msgspec

from gateway.errors import ConfigError
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import HumanKind, HumanTurn, Session, chat_usage
from gateway.offline.recordings import Recording, recording_of
from gateway.reporting.run_exports import chat_messages
from gateway.steering.transcript.interventions import is_interruption, rejection
from gateway.steering.transcript.user_words import user_words, words_of
from gateway.stores.records import CallRow, StepRow
from gateway.values import Fields
from gateway.wire.coerce import as_list, as_mapping, list_at, mapping_at, text_at
from gateway.wire.message_identity import content_text

AGENT = "recordings"
_KINDS: tuple[HumanKind, ...] = ("interrupt", "reject")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    for data in log.records():
        place = f"{log.stem}:{log.seen}"
        try:
            recording = recording_of(data, place)
            session = _session(data, recording)
            if recording.messages is not None:
                _from_messages(session, data, recording)
            else:
                _from_steps(session, data)
        except (ConfigError, msgspec.ValidationError) as exc:
            log.skip(str(exc).removeprefix(f"{place}: "))
            continue
        yield session


def _session(data: Fields, recording: Recording) -> Session:
    label = recording.label
    run = mapping_at(data, "run")
    session = Session(id=label.id, agent=AGENT, project=label.source, outcome=label.success)
    session.version = text_at(data, "version")
    session.title = text_at(run, "task_preview")
    session.author = text_at(data, "who")
    for each in (data.get("started"), run.get("started_at"), run.get("ended_at")):
        session.at(each)
    return session


def _from_messages(session: Session, data: Fields, recording: Recording) -> None:
    """Add recorded messages. A recording that says what the person did is believed; in others it
    is read from the agents' own wordings."""
    labels = mapping_at(data, "labels")
    known = "interventions" in labels
    for message in map(as_mapping, recording.messages or ()):
        position = len(session.messages)
        if message.get("compact") is True:
            session.compactions.append(position)
        if message.get("role") == "assistant":
            usage = mapping_at(message, "usage")
            session.reply(model=recording.label.model, usage=usage)
            session.messages[-1] = dict(message)
        else:
            session.messages.append(dict(message))
        read_acts(session, message, only_words=known)
    for each in list_at(labels, "interventions"):
        kind, position = (*as_list(each), None, None)[:2]
        if kind in _KINDS and isinstance(position, int) and 0 <= position <= len(session.messages):
            message = [*session.messages, {}][position]
            said = rejection(content_text(message.get("content"))) or ""
            session.human.append(HumanTurn(kind=kind, position=position, text=said))
    # an interruption stands before the message that followed it
    session.human.sort(key=lambda turn: (turn.position, turn.kind == "message"))


def read_acts(
    session: Session,
    message: Fields,
    at: float | None = None,
    *,
    only_words: bool = False,
) -> None:
    """Note what the person did in the chat message that was just added."""
    content = message.get("content")
    text = content_text(content)
    if message.get("role") != "assistant" and not only_words:
        session.typed(text, at)
    is_typed = message.get("role") == "user" and message.get("compact") is not True
    if is_typed and not is_interruption(text) and (words := words_of(content, user_words)):
        session.did("message", words, at, back=1)


def _from_steps(session: Session, data: Fields) -> None:
    """Add an exported run. If it was exported without texts, only its calls and their cost are
    added."""
    steps = msgspec.convert(data.get("steps"), list[StepRow])
    made = {step.step_index + 1: step.call for step in steps}
    for message, index in chat_messages(steps):
        if message["role"] == "assistant" and (call := made.pop(index, None)):
            _answer(session, call)
            session.messages[-1] = message
        else:
            session.messages.append(message)
        read_acts(session, message)
    for call in made.values():
        if call and not call.failed:
            _answer(session, call)


def _answer(session: Session, call: CallRow) -> None:
    usage = chat_usage(
        call.input_tokens, call.output_tokens, call.cached_tokens, written=call.cache_write_tokens
    )
    model = call.model_served or call.model_asked
    session.reply(model=model, usage=usage, key=call.request_id, cost_usd=call.cost_usd)
