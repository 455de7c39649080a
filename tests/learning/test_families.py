"""The planted families are what they claim to be."""

from __future__ import annotations

from collections import Counter

from tests.learning.families import families, tried


def test_every_family_has_runs_that_fail_and_runs_that_end_well() -> None:
    """Each with a name of its own, enough runs, and both outcomes."""
    found = families()

    assert len({family.name for family in found}) == 37
    for family in found:
        assert len(family.runs) >= 9
        assert {True, False} <= {run.success for run in family.runs}, family.name
        assert all(run.calls for run in family.runs), family.name


async def test_lessons_name_the_hidden_rule() -> None:
    """Of 36 families with a rule most lessons that are tried name it, and none names anything else;
    where chance decided, no lesson is tried."""
    found = Counter[str]()
    for family in families():
        judged = {family.judge(move) for _, move in await tried(family)}
        found["wrong" if "wrong" in judged else "right" if "right" in judged else "silent"] += 1
    assert found["wrong"] == 0
    assert found["right"] >= 28
