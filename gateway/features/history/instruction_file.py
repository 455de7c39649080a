"""A prompt with what people typed, for an agent that writes the lines of the instruction file; or
those lines, as `reader.model` chooses them."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.backends import open_stores
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.history.projects import repository_of
from gateway.features.history.screen import text_of
from gateway.features.history.typed import WORDINGS, TypedAgain
from gateway.text.sanitize import visible
from gateway.text.secrets import mask_secrets

_FILES = ("CLAUDE.md", "AGENTS.md")


def brief(typed: Mapping[str, Sequence[TypedAgain]], folder: Path) -> str:
    """The prompt about the project that lives in `folder`, with its instruction file; about the
    first project if none does. `typed`: by project."""
    project, name, content = _project(folder)
    if project not in typed:
        project = next(iter(typed))
        name = _FILES[-1]
        content = ""
    return text_of(
        "brief.txt",
        project=project,
        name=name,
        entries=typed[project],
        wordings=WORDINGS,
        content=mask_secrets(content),
        command="gateway history",
    )


def _project(folder: Path) -> tuple[str, str, str]:
    """(the project in a folder, its instruction file or the one that it may get, the content)."""
    project = Path(repository_of(str(folder))).name
    for name in _FILES:
        if (folder / name).is_file():
            return project, name, (folder / name).read_bytes().decode(errors="replace")
    return project, _FILES[-1], ""


async def read_brief(
    typed: Mapping[str, Sequence[TypedAgain]], folder: Path, settings: Settings, *, write: bool
) -> None:
    """Print a diff that adds lines to the instruction file of the project in `folder`: those that
    `reader.model` chooses of its sentences, but of no question and of no sentence that contradicts
    another one. `write`: add them, too. Raises: ConfigError; StoreError."""
    from gateway.features.learning.reader.lines import added_to, suggested

    project, name, content = _project(folder)
    entries = typed.get(project, ())
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
    diff, added = added_to(name, content, lines)
    sys.stdout.write(diff)
    if (folder / name).resolve().parent != folder:
        raise ConfigError(f"brief: {name} is a link to another folder, which is not written to")
    if write and added:
        with (folder / name).open("ab") as file:
            file.write(added.encode())
