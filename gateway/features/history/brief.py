"""A prompt with what people typed, for an agent that writes the lines of the instruction file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.features.history.screen import text_of
from gateway.features.history.session import project_of
from gateway.features.history.typed import WORDINGS, TypedAgain
from gateway.text.secrets import mask_secrets

_FILES = ("CLAUDE.md", "AGENTS.md")


def brief(typed: Mapping[str, Sequence[TypedAgain]], folder: Path) -> str:
    """The prompt about the project that lives in `folder`, with its instruction file; about the
    first project if none does. `typed`: by project."""
    here = Path(project_of(str(folder))).name
    project = here if here in typed else next(iter(typed))
    name = _FILES[-1]
    content = ""
    if project == here:
        name = next((each for each in _FILES if (folder / each).is_file()), name)
        if (folder / name).is_file():
            content = mask_secrets((folder / name).read_text(encoding="utf-8", errors="replace"))
    return text_of(
        "brief.txt",
        project=project,
        name=name,
        entries=typed[project],
        wordings=WORDINGS,
        content=content,
    )
