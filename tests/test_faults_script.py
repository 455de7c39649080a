"""The script that plants faults: which there are, and that a planted one is another program."""

from __future__ import annotations

import ast

from scripts.faults import ROOMS, ROOT, drawn, faults_of, in_order, planted

SOURCE = '''
def is_over(used: int, limit: int, log: list[str]) -> bool:
    """Größer."""
    if used > limit:
        log.append("über")
    return used >= limit
'''


def test_each_kind_of_fault_is_planted() -> None:
    """By its place in the bytes, also behind letters that take two."""
    found = {fault.kind: planted(SOURCE, fault) for fault in faults_of("x.py", SOURCE)}
    assert set(found) == {
        "comparison shifted",
        "condition negated",
        "call dropped",
        "value dropped",
    }
    assert "if (not (used > limit)):" in found["condition negated"]
    assert "        pass\n" in found["call dropped"]
    assert "    return None\n" in found["value dropped"]
    assert "return ((used) > (limit))" in found["comparison shifted"]


def test_drawn_faults_leave_programs() -> None:
    """Every room has its share, the same draw gives the same, and each is still Python."""
    faults = drawn(40, seed=3)
    assert faults == drawn(40, seed=3)
    for number, fault in enumerate(faults):
        assert fault.file.startswith(list(ROOMS)[number % len(ROOMS)])
        source = (ROOT / fault.file).read_text()
        assert ast.dump(ast.parse(planted(source, fault))) != ast.dump(ast.parse(source))


def test_the_rooms_have_tests() -> None:
    """Each folder and each of its tests is there."""
    assert [each for room, tests in ROOMS.items() for each in (room, *tests)]
    assert all((ROOT / each).exists() for room, tests in ROOMS.items() for each in (room, *tests))


def test_the_likeliest_tests_come_first() -> None:
    """Those that name the module; then all others of the room, each once."""
    found = in_order("gateway/core", "gateway/core/guidance_plan.py")
    assert found.index("tests/steering/guidance/test_plan.py") < found.index(
        "tests/conversations/test_body_tree.py"
    )
    assert sorted(found) == sorted(in_order("gateway/core", ""))
    assert len(found) == len(set(found))
    assert "tests/live/test_interventions.py" in found
