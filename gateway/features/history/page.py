"""The first screen of `gateway history` as one file that loads nothing, to be sent to others."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from gateway.commands.store import reported
from gateway.errors import ConfigError
from gateway.features.history.reading import SessionReading
from gateway.features.history.screen import MOST_PLACES, rows_of_sums, text_of
from gateway.features.history.summary import limit_of, summarise
from gateway.features.history.typed import typed_alike, typed_by_project

_ROWS = 15  # of each table


def check_file(file: Path, *, overwrite: bool) -> None:
    """Raises ConfigError: the folder of the file is missing, or the file is not."""
    if not file.parent.is_dir():
        raise ConfigError(f"--html: there is no folder {str(file.parent)!r}")
    if file.is_dir() or (os.path.lexists(file) and not overwrite):
        raise ConfigError(f"--html: {str(file)!r} is there already: --force overwrites a file")


def write_page(file: Path, readings: Sequence[SessionReading], *, words: bool) -> None:
    """Write the page about sessions, whole or not at all, for this user alone to read. `words`:
    with what people and agents said. Raises ConfigError: it cannot be written."""
    text = page(readings, words=words)
    made = file.with_name(f".{os.getpid()}.html")
    with reported():
        try:
            made.touch(0o600, exist_ok=False)
            made.write_text(text, encoding="utf-8")
            made.replace(file)
        finally:
            made.unlink(missing_ok=True)


def page(readings: Sequence[SessionReading], *, words: bool) -> str:
    """The page about sessions, as HTML."""
    summary = summarise(readings if words else list(map(without_words, readings)))
    limit = limit_of(summary)
    parts = rows_of_sums(summary, _ROWS)
    lines = {
        name: text_of(f"{name}.txt", summary=summary, limit=limit, parts=parts).splitlines()
        for name in ("whose", "notes", "findings")
    }
    typed = typed_alike(typed_by_project(readings)) if words else {}
    return text_of(
        "history.html",
        summary=summary,
        words=words,
        parts=parts,
        lines=lines,
        typed=typed,
        most=MOST_PLACES,
    )


def without_words(reading: SessionReading) -> SessionReading:
    """The reading without texts that a person or a model wrote, or that a command printed: of
    places the monitor or the act stays, of sub-agents the kind."""
    alarms = {(True, alarm.step): f"alarm: {alarm.label}" for alarm in reading.alarms}
    places = [
        replace(each, what=alarms.get((each.alarmed, each.step), each.what.partition(":")[0]))
        for each in reading.places
    ]
    return replace(
        reading,
        title="",
        place=reading.place.rpartition("/")[2],
        order=replace(reading.order, task=""),
        reasons={"of a form that is not known": sum(reading.reasons.values())},
        places=tuple(places),
    )
