"""Close the changelog for a version: what is under Unreleased becomes that version's section.

    python -m scripts.release 2026-11-22    # `make release DATE=2026-11-22`

The version is the package's own. A section that it has already is joined with, so that a version is
closed once more as long as it was not given away.
"""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

from gateway import __version__

FILE = Path(__file__).resolve().parents[1] / "CHANGELOG.md"
KINDS = ("", "To do", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")

Parts = dict[str, str]
"""Text by kind of change; "" is what stands before the first kind."""


def closed(text: str, version: str, day: str) -> str:
    """The changelog with an empty Unreleased section.

    Raises:
        ValueError: there is no such section, the heading of a part of it is unknown, or an entry
            has more than one line.
    """
    head, found, rest = text.partition("## [Unreleased]\n")
    if not found:
        raise ValueError("CHANGELOG.md: there is no section [Unreleased]")
    fresh, *older = re.split(r"^(?=## \[)", rest, flags=re.MULTILINE)
    same = next((each for each in older if each.startswith(f"## [{version}]")), "")
    parts, before = _parts(fresh), _parts(same.partition("\n")[2])
    joined = []
    for kind in KINDS:
        body = "\n".join(filter(None, [parts.get(kind, ""), before.get(kind, "")]))
        if body:
            joined.append(f"### {kind}\n\n{body}" if kind else body)
    section = f"## [{version}] - {day}\n\n" + "\n\n".join(joined) + "\n"
    others = "".join(each for each in older if each is not same)
    return f"{head}## [Unreleased]\n\n{section}" + (f"\n{others}" if others else "")


def _parts(section: str) -> Parts:
    first, *groups = re.split(r"^### ", section, flags=re.MULTILINE)
    found = {"": first.strip("\n")}
    for group in groups:
        kind, _, body = group.partition("\n")
        if kind not in KINDS:
            raise ValueError(f"CHANGELOG.md: {kind!r} is no kind of change; known: {KINDS[1:]}")
        for line in filter(None, body.splitlines()):
            if not line.startswith("- "):
                raise ValueError(
                    f"CHANGELOG.md: an entry is one line that begins with '- ': {line!r}"
                )
        found[kind] = "\n".join(filter(None, [found.get(kind, ""), body.strip("\n")]))
    return found


def main(words: list[str]) -> None:
    """Close it as of the date in `words`. Raises: SystemExit with what is wrong."""
    try:
        day = date.fromisoformat("".join(words))
    except ValueError:
        example = "make release DATE=2026-11-22"
        raise SystemExit(f"release: which date? For example: {example}") from None
    try:
        text = closed(FILE.read_text("utf-8"), __version__, day.isoformat())
    except ValueError as exc:
        raise SystemExit(f"release: {exc}") from None
    FILE.write_text(text, "utf-8")
    print(f"{FILE.name}: {__version__} is closed as of {day}")


if __name__ == "__main__":
    main(sys.argv[1:])
