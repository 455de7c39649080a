"""Logs of agents as test data, and what a test compares of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from gateway.features.history.find import Found, named
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from gateway.wire.usage import tokens_of

PROGRAMS = Path(__file__).parent / "programs"


class Counts(NamedTuple):
    """The counts of a session: tokens are those of all answers together."""

    steps: int
    calls: int
    said: int
    interrupts: int
    rejects: int
    tokens: int


def acts(session: Session, kind: str) -> int:
    """The number of the person's acts of one kind."""
    return sum(turn.kind == kind for turn in session.human)


def counts(session: Session) -> Counts:
    """The counts of a session by the steering core, which must find each answer of the model."""
    steps = extract(session.messages)
    assert len(steps) == len(session.calls)
    positions = [call.position for call in session.calls]
    assert all(session.messages[at]["role"] == "assistant" for at in positions)
    return Counts(
        steps=len(steps),
        calls=sum(len(step.actions) for step in steps),
        said=acts(session, "message"),
        interrupts=acts(session, "interrupt"),
        rejects=acts(session, "reject"),
        tokens=sum(sum(tokens_of(call.usage).values()) for call in session.calls),
    )


def sessions(*paths: Path) -> list[Session]:
    """All sessions of the logs in these files and folders."""
    return [each for found in named(paths) for each in read(found)]


def read(found: Found) -> list[Session]:
    """The sessions of one file."""
    assert found.format is not None, found.problem
    return list(found.sessions(LogFile(found.path)))


def write_files(folder: Path, files: dict[str, Any]) -> None:
    """Write a folder of JSON files, given by their paths."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
