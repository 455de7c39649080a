"""Recorded runs on disk: transcripts of any agent, and the gateway's own export.

One JSON object per line, in `.jsonl` or `.jsonl.gz` files or directories of them. A record has
`messages` (OpenAI chat messages) or `steps` (what the gateway exports, or plain step records), and
optionally `id`, `source`, `model`, `group`, `success` and `labels`.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gateway.errors import ConfigError
from gateway.steering.steps import Action, Step, steps_from_records

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson")
STDIN = Path("-")
_SUCCESS = {"success": True, "failure": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run as it was recorded; `success` is None when nobody said how it ended.

    `group` names what must stay on one side of a split; `mistake_step` is the step an annotator
    blamed. Exactly one of `messages` and `steps` is not None.
    """

    id: str
    source: str = ""
    model: str = ""
    group: str = ""
    success: bool | None = None
    mistake_step: int | None = None
    license: str = ""
    messages: Sequence[Any] | None = None
    steps: Sequence[Mapping[str, Any]] | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)


def recording_files(paths: Iterable[Path]) -> list[Path]:
    """The files meant by `paths`: files as they are, directories by suffix, sorted.

    `STDIN` stands for standard input, which like any pipe can be read once.

    Raises:
        ConfigError: a path does not exist, or a directory holds no recording.
    """
    files: list[Path] = []
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
    """Each line that is not blank, with its file and number from 1.

    A line that is not UTF-8 is given out as well: `parse_recording` refuses it, and only it.

    Raises:
        ConfigError: a file cannot be read, or not to its end.
    """
    for file in files:
        number = 0
        try:
            with _open(file) as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield file, number, line
        except (OSError, EOFError, zlib.error) as exc:
            raise ConfigError(f"{file}:{number + 1}: cannot be read: {exc}") from exc


def write_output(path: Path, text: str) -> None:
    """Write a file that a command was asked for.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc


def _open(file: Path) -> IO[str]:
    # "-sig": editors on Windows begin a file with a mark.
    if file == STDIN:
        return open(
            sys.stdin.fileno(), encoding="utf-8-sig", errors="surrogateescape", closefd=False
        )
    if file.name.endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", errors="surrogateescape")
    return file.open(encoding="utf-8-sig", errors="surrogateescape")


def parse_recording(line: str, place: str) -> Recording:
    """The recording in one line; `place` names it in messages and stands in for a missing id.

    Raises:
        ConfigError: not UTF-8, not a JSON object, or neither `messages` nor `steps` is a list.
    """
    try:
        line.encode()
        data = json.loads(line)
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{place}: not UTF-8 at character {exc.start}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{place}: not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise ConfigError(f"{place}: expected an object, got {type(data).__name__}")
    run = _mapping(data.get("run")) or data
    messages, steps = data.get("messages"), data.get("steps")
    if not isinstance(messages, list) and not isinstance(steps, list):
        raise ConfigError(f"{place}: neither `messages` nor `steps` is a list")
    labels, origin = _mapping(data.get("labels")), _mapping(data.get("origin"))
    own_id = _text(run.get("id")) or place
    return Recording(
        id=own_id,
        source=_text(run.get("source")) or _text(run.get("agent")),
        model=_text(run.get("model")) or _text(run.get("model_requested")),
        group=_text(run.get("group")) or own_id,
        success=_success(run),
        mistake_step=_whole(labels.get("mistake_step")),
        license=_text(origin.get("license")),
        messages=messages if isinstance(messages, list) else None,
        steps=None if isinstance(messages, list) else steps,
        labels=labels,
    )


def recorded_steps(records: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Steps from exported rows (texts under `content`) or plain records; others are left out.

    A row without content is what the gateway writes for a run's first call, or with content
    storage switched off: there is nothing in it to score.
    """
    return tuple(step for step, _ in _recorded(records))


def recorded_scores(records: Iterable[Mapping[str, Any]]) -> tuple[float | None, ...]:
    """The difficulty on record of each of `recorded_steps`; None where there is none."""
    return tuple(score for _, score in _recorded(records))


def _recorded(records: Iterable[Mapping[str, Any]]) -> list[tuple[Step, float | None]]:
    steps: list[tuple[Step, float | None]] = []
    for record in records:
        content = record.get("content") if isinstance(record, Mapping) else None
        if isinstance(content, Mapping):
            steps.append((_content_step(len(steps), content), _score(record)))
        elif isinstance(record, Mapping) and not {"state", "at"} <= record.keys():
            plain = steps_from_records([record])[0]
            steps.append((_numbered(plain, len(steps)), _score(record)))
    return steps


def _score(record: Mapping[str, Any]) -> float | None:
    value = record.get("difficulty")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _content_step(index: int, content: Mapping[str, Any]) -> Step:
    actions = content.get("actions")
    return Step(
        index=index,
        thought=_text(content.get("thought")),
        reasoning=_text(content.get("reasoning")),
        prompted=content.get("prompted") is True,
        actions=tuple(
            Action(
                name=_text(action.get("name")),
                arguments=_text(action.get("arguments")),
                observation=_text(action.get("observation")),
                is_error=bool(action.get("is_error")),
                image=_whole(action.get("image")) or 0,
            )
            for action in (actions if isinstance(actions, list) else ())
            if isinstance(action, Mapping)
        ),
    )


def _numbered(step: Step, index: int) -> Step:
    return Step(index=index, thought=step.thought, actions=step.actions, reasoning=step.reasoning)


def _success(run: Mapping[str, Any]) -> bool | None:
    value = run.get("success")
    if isinstance(value, bool):
        return value
    return _SUCCESS.get(_text(run.get("outcome")))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
