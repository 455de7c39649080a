"""Check the built site: no page loads anything from another host.

    python scripts/check_site.py site

Links that a reader may click are allowed; scripts, styles, pictures and fonts are not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*?\ssrc=["'](https?:)?//"""
    r"""|<link\b(?=[^>]*rel=["'](?:stylesheet|preload|preconnect|icon))[^>]*href=["'](https?:)?//""",
    re.IGNORECASE,
)
_IN_STYLE = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//""", re.IGNORECASE)


def main(folder: Path) -> int:
    """0 when nothing is loaded from elsewhere; names the pages otherwise."""
    found = [
        str(file.relative_to(folder))
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".html", ".css")
        and (_IN_STYLE if file.suffix == ".css" else _LOADED).search(file.read_text("utf-8"))
    ]
    if not list(folder.glob("index.html")):
        print(f"there is no site in {folder}", file=sys.stderr)
        return 1
    if found:
        print(f"these load something from another host: {', '.join(found)}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
