"""What a screen reader, a keyboard and weak eyes need of a page, checked in the page itself.

Named controls, regions and columns, unique ids, no key that leads to what is hidden, one main
heading, no skipped heading level, no positive tabindex, and text with the contrast of WCAG 2.1 AA
(4.5 to 1; 3 to 1 for large text) on the colour behind it.
"""

from __future__ import annotations

from pathlib import Path

AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8").partition("\n")[2]
