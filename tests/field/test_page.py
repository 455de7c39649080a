"""The page about what guidance does not break names every case with guidance, and its sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.field.cases import CASES

PAGE = (Path(__file__).parents[2] / "docs" / "unharmed.md").read_text("utf-8")
GUIDED = [case for case in CASES if "only_guidance" in case["expect"]]


@pytest.mark.parametrize("case", GUIDED, ids=lambda case: case["id"])
def test_a_case_is_on_the_page(case: dict[str, Any]) -> None:
    """With the number of each report that it is taken from."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{case['id']}` |")]
    for report in re.findall(r"[\w.-]+/[\w.-]+#\d+", case["source"]):
        owner, _, number = report.partition("#")
        assert f"https://github.com/{owner}/issues/{number}" in row


def test_no_other_case_is_on_the_page() -> None:
    """The page has as many rows as there are cases with guidance."""
    assert len(re.findall(r"^\| `", PAGE, re.MULTILINE)) == len(GUIDED)
