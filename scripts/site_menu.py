"""A hook of mkdocs: pages that the menu does not name are put into its section `Use`.

A new page is then on the site without a further line; who wants it elsewhere names it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECTION = "Use"


def on_config(config: Any) -> Any:
    """Complete the menu before the site is built."""
    docs = Path(config["docs_dir"])
    named = set(_named(config["nav"]))
    [section] = [entry[SECTION] for entry in config["nav"] if SECTION in entry]
    pages = sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
    section.extend(page for page in pages if page not in named)
    return config


def _named(entries: Any) -> Iterator[str]:
    for entry in entries:
        for value in [entry] if isinstance(entry, str) else entry.values():
            yield from [value] if isinstance(value, str) else _named(value)
