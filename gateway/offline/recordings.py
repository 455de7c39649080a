"""Recorded runs on disk: transcripts of any agent, and the gateway's exported runs.

One JSON object per line, in `.jsonl` or `.jsonl.gz` files or directories of them. A record has
`messages` (OpenAI chat messages) or `steps` (what the gateway exports, or plain step records), and
optionally `id`, `source`, `model`, `group`, `success` and `labels`."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from gateway.core.step import Action, Step
from gateway.errors import ConfigError, in_words
from gateway.steering.transcript.steps import extract, steps_from_records
from gateway.values import Fields, frozen
from gateway.wire.coerce import (
    as_bool,
    as_int,
    as_list,
    as_mapping,
    as_number,
    list_at,
    mapping_at,
    objects,
    text_at,
)

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson")
STDIN = Path("-")


@frozen
class RunLabel:
    """Origin and outcome of a recorded run."""

    id: str  # unique within its file
    source: str = ""  # collection that it is from
    model: str = ""  # that the agent used
    group: str = ""  # what must stay on one side of a split
    success: bool | None = None  # None when the outcome is unknown
    mistake_step: int | None = None  # step that an annotator blamed; None when nobody did


@frozen
class Recording:
    """One run as it was recorded; exactly one of `messages` and `steps` is not None."""

    label: RunLabel  # origin and outcome
    messages: Sequence[Any] | None = None  # the transcript in chat form
    steps: Sequence[Fields] | None = None  # rows of an export
    # what else the agent's requests held, such as `tools`
    request: Fields = field(default_factory=dict)
    compactions: Sequence[int] = ()  # indices of the messages that replaced all earlier ones


def recording_files(paths: Iterable[Path]) -> list[Path]:
    """The files meant by `paths`: files and STDIN as they are, directories by suffix, sorted.
    Raises ConfigError: a path does not exist, or a directory holds no recording."""
    files = []
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
            if not found:
                raise ConfigError(f"{path}: no {' or '.join(SUFFIXES)} file in this directory")
            files += found
        elif path == STDIN or path.exists():
            files.append(path)
        else:
            raise ConfigError(f"{path}: no such file or directory")
    return files


def read_lines(files: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """Each line that is not blank, with its file and number from 1, also one that is not UTF-8.
    Raises ConfigError: a file cannot be read, or not to its end."""
    for file in files:
        number = 0
        try:
            with _open(file) as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield file, number, line
        except (OSError, EOFError, zlib.error) as exc:
            raise ConfigError(f"{file}:{number + 1}: cannot be read: {in_words(exc)}") from exc


def file_lines(file: Path) -> list[bytes]:
    """The lines of a file. Raises: ConfigError."""
    try:
        return file.read_bytes().split(b"\n")
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc


def _open(file: Path) -> IO[str]:
    # "-sig": editors on Windows write a byte order mark.
    if file == STDIN:
        return open(
            sys.stdin.fileno(), encoding="utf-8-sig", errors="surrogateescape", closefd=False
        )
    if file.name.endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", errors="surrogateescape")
    return file.open(encoding="utf-8-sig", errors="surrogateescape")


def parse_recording(line: str, place: str) -> Recording:
    """The recording in one line; `place` names it in error messages and replaces a missing id.
    Raises ConfigError: not UTF-8, not a JSON object, or neither `messages` nor `steps` is a
    list."""
    try:
        line.encode()
        data = json.loads(line)
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{place}: not UTF-8 at character {exc.start}") from exc
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{place}: not JSON: {exc.msg}, column {exc.pos + 1}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{place}: not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise ConfigError(f"{place}: expected an object, got {type(data).__name__}")
    return recording_of(data, place)


def recording_of(data: Fields, place: str) -> Recording:
    """The recording in an object; see `parse_recording`. Raises ConfigError: neither `messages` nor
    `steps` is a list."""
    messages = data.get("messages")
    steps = data.get("steps")
    if not isinstance(messages, list) and not isinstance(steps, list):
        raise ConfigError(f"{place}: neither `messages` nor `steps` is a list")
    return Recording(
        label=_label(mapping_at(data, "run") or data, mapping_at(data, "labels"), place),
        messages=messages if isinstance(messages, list) else None,
        steps=None if isinstance(messages, list) else steps,
        request=_request(data, messages),
        compactions=[
            at for at, m in enumerate(as_list(messages)) if as_mapping(m).get("compact") is True
        ],
    )


def _label(run: Fields, labels: Fields, place: str) -> RunLabel:
    own_id = text_at(run, "id") or place
    outcome = {"success": True, "failure": False}.get(text_at(run, "outcome"))
    return RunLabel(
        id=own_id,
        source=text_at(run, "source") or text_at(run, "agent"),
        model=text_at(run, "model") or text_at(run, "model_requested"),
        group=text_at(run, "group") or own_id,
        success=as_bool(run.get("success"), outcome),
        mistake_step=as_int(labels.get("mistake_step"), None),
    )


def _request(data: Fields, messages: object) -> Fields:
    """The recorded request parameters; tools that were called but not recorded are added."""
    request = dict(mapping_at(data, "request"))
    tools = data.get("tools", request.get("tools"))
    if not isinstance(tools, list):
        calls = (call for m in as_list(messages) for call in list_at(as_mapping(m), "tool_calls"))
        functions = (mapping_at(as_mapping(call), "function") for call in calls)
        names = dict.fromkeys(text_at(each, "name") or "tool" for each in functions)
        tools = [{"type": "function", "function": {"name": name}} for name in names]
    if tools:
        return {**request, "tools": tools}
    return request


def steps_of(recording: Recording) -> tuple[Step, ...]:
    """The steps of a recording of either form."""
    if recording.messages is not None:
        return extract(recording.messages)
    return tuple(step for step, _ in scored_steps(recording.steps or ()))


def scored_steps(records: Iterable[Fields]) -> list[tuple[Step, float | None]]:
    """Steps from exported rows (texts under `content`) or plain records, each with its recorded
    difficulty, or None. A row without content, as for a run's first call, is left out."""
    steps: list[tuple[Step, float | None]] = []
    for record in records:
        content = as_mapping(record).get("content")
        if isinstance(content, Mapping):
            step = _content_step(len(steps), content)
        elif isinstance(record, Mapping) and not {"state", "at"} <= record.keys():
            (step,) = steps_from_records([record])
            step = replace(step, index=len(steps))
        else:
            continue
        steps.append((step, as_number(record.get("difficulty"), None)))
    return steps


def _content_step(index: int, content: Fields) -> Step:
    actions = []
    for each in objects(content.get("actions")):
        texts = {key: text_at(each, key) for key in ("name", "arguments", "observation")}
        image = as_int(each.get("image"), 0)
        actions.append(Action(**texts, is_error=bool(each.get("is_error")), image=image))
    return Step(
        index=index,
        thought=text_at(content, "thought"),
        reasoning=text_at(content, "reasoning"),
        prompted=content.get("prompted") is True,
        actions=tuple(actions),
    )
