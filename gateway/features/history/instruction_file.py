"""A prompt with what people typed, for an agent that writes the lines of the instruction file; or
those lines, as `reader.model` chooses them."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.backends import open_stores
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.history.screen import text_of
from gateway.features.history.typed import WORDINGS, TypedAgain
from gateway.text.sanitize import visible
from gateway.text.secrets import mask_secrets

_FILES = ("CLAUDE.md", "AGENTS.md")


def brief(typed: Mapping[str, Sequence[TypedAgain]], folder: Path) -> str:
    """The prompt about the project that lives in `folder`, with its instruction file. `typed`: in
    that project, by its name."""
    ((project, entries),) = typed.items()
    file = _file_in(folder)
    return text_of(
        "brief.txt",
        project=project,
        name=file.name,
        entries=entries,
        wordings=WORDINGS,
        content=mask_secrets(_text_of(file, "replace")),
        command="gateway history",
    )


def _file_in(folder: Path) -> Path:
    """The instruction file of a project, or the one that it may get."""
    files = [folder / name for name in _FILES]
    return next(filter(Path.is_file, files), files[-1])


def _text_of(file: Path, errors: str) -> str:
    """The text of a file, "" if there is none. `errors`: as for `bytes.decode`."""
    if file.is_file():
        return file.read_bytes().decode(errors=errors)
    return ""


async def read_brief(
    typed: Mapping[str, Sequence[TypedAgain]], folder: Path, settings: Settings, *, write: bool
) -> None:
    """Print a diff that adds lines to the instruction file of the project in `folder`: those that
    `reader.model` chooses of its sentences, but of no question and of no sentence that contradicts
    another one. `typed`: as for `brief`; `write`: add them, too. Raises: ConfigError;
    StoreError."""
    from gateway.features.learning.reader.lines import added_to, suggested

    ((project, entries),) = typed.items()
    file = _file_in(folder)
    content = _text_of(file, "replace")
    known = {each.words for entry in entries if entry.contradict for each in entry.sentences}
    found = [each for entry in entries for each in entry.wordings if each.words not in known]
    rules = {
        str(number): {"said": each.words, "author": each.session.author, "since": each.at}
        for number, each in enumerate(found)
        if each.words not in content and each.words[-1] != "?"
    }
    if not rules:
        raise ConfigError(f"brief: nothing new was typed in several sessions of {project!r}")
    stores = await open_stores(settings.storage)
    try:
        lines, notes = await suggested(rules, content, stores, settings)
    finally:
        await stores.close()
    sys.stderr.write(f"gateway: {visible(notes)}\n")
    # Read again: somebody may have changed it while the model answered. What is not UTF-8 stays.
    diff, text = added_to(file.name, _text_of(file, "surrogateescape"), lines)
    sys.stdout.write(diff.encode(errors="surrogateescape").decode(errors="replace"))
    if file.resolve().parent != folder:
        fault = "is a link to another folder, which is not written to"
        raise ConfigError(f"brief: {file.name} {fault}")
    if write and lines:
        file.write_bytes(text.encode(errors="surrogateescape"))
