"""Plant random faults in copies of the package, and count those that the tests of a room notice.

    python -m scripts.faults --count 40 --seed 1

A fault is a comparison shifted, a condition negated, a call dropped, or a returned value dropped.
Those that no test notices are listed with their line: each is a test that is missing, or code that
changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

ROOMS: Mapping[str, Sequence[str]] = {
    "gateway/core": ("tests/steering", "tests/conversations", "tests/live/test_interventions.py"),
    "gateway/conversations": ("tests/conversations", "tests/live/test_identity.py"),
    "gateway/features/budgets": ("tests/features/budgets",),
    "gateway/stores": ("tests/stores",),
}
"""The folders that get faults, and the tests that should notice them."""

_SHIFTED: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_HANGS_S = 900.0
"""A fault that makes the tests go on for ever is noticed."""


@dataclass(frozen=True)
class Fault:
    """Another text for a part of a file.

    file: below the root. start, end: offsets in its bytes. kind: of the four above.
    """

    file: str
    line: int
    start: int
    end: int
    text: str
    kind: str


def faults_of(file: str, source: str) -> Iterator[Fault]:
    """Every fault that can be planted in a module."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def fault(node: ast.expr | ast.stmt, text: str, kind: str) -> Fault:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        return Fault(file, node.lineno, start, end, text, kind)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            shifted = _SHIFTED[type(node.ops[0])]
            yield fault(node, f"(({left}) {shifted} ({right}))", "comparison shifted")
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield fault(node.test, f"(not ({ast.unparse(node.test)}))", "condition negated")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            yield fault(node, "pass", "call dropped")
        elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
            yield fault(node, "return None", "value dropped")


def planted(source: str, fault: Fault) -> str:
    """The source with the fault in it."""
    raw = source.encode()
    return (raw[: fault.start] + fault.text.encode() + raw[fault.end :]).decode()


def drawn(count: int, seed: int, rooms: Sequence[str] = tuple(ROOMS)) -> list[Fault]:
    """So many faults, each of these rooms as likely as another."""
    draw = random.Random(seed)  # noqa: S311 - a sample that can be drawn again
    all_of = {
        room: [
            fault
            for path in sorted((ROOT / room).rglob("*.py"))
            for fault in faults_of(str(path.relative_to(ROOT)), path.read_text())
        ]
        for room in rooms
    }
    return [draw.choice(all_of[rooms[number % len(rooms)]]) for number in range(count)]


def room_of(fault: Fault) -> str:
    """The folder of `ROOMS` that a fault is in."""
    return next(room for room in ROOMS if fault.file.startswith(f"{room}/"))


def in_order(room: str, file: str) -> list[str]:
    """The test modules of a room; those that name the module of `file`, which are the likeliest to
    notice a fault in it, come first."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = []
    for each in ROOMS[room]:
        path = ROOT / each
        found += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    found.sort(key=lambda path: module not in path.read_text())
    return [str(path.relative_to(ROOT)) for path in found]


def fails(room: str, fault: Fault | None = None) -> bool:
    """Whether a test of a room fails, or hangs, in a copy of the checkout with the fault."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "site", "node_modules")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
        if fault is not None:
            broken = copy / fault.file
            broken.write_text(planted(broken.read_text(), fault))
        tests = in_order(room, fault.file if fault is not None else "")
        how = ["-x", "-q", "-p", "no:xdist", "-m", "not slow and not nightly"]
        command = [sys.executable, "-m", "pytest", *how, *tests]
        paths = [str(copy), str(copy / "packages" / "steering-gateway-testing")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        try:
            ended = subprocess.run(
                command, cwd=copy, env=env, capture_output=True, timeout=_HANGS_S, check=False
            )
        except subprocess.TimeoutExpired:
            return True
        return ended.returncode != 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, plant, run and print."""
    parser = argparse.ArgumentParser(prog="python -m scripts.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="faults to plant")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other faults")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--room", action="append", choices=ROOMS, help="draw from these alone")
    given = parser.parse_args(arguments)
    chosen = given.room or list(ROOMS)
    faults = drawn(given.count, given.seed, chosen)
    noticed = Counter[str]()
    tried = Counter[str]()
    with ThreadPoolExecutor(given.jobs) as pool:
        rooms = [room_of(fault) for fault in faults]
        for room, failed in zip(chosen, pool.map(fails, chosen), strict=True):
            if failed:
                print(f"the tests of {room} fail without a fault")
                return 1
        for fault, room, found in zip(faults, rooms, pool.map(fails, rooms, faults), strict=True):
            tried[room] += 1
            noticed[room] += found
            if not found:
                print(f"not noticed: {fault.file}:{fault.line}: {fault.kind}: {fault.text[:100]}")
    for room, count in tried.items():
        print(f"{room}: {noticed[room]} of {count} noticed")
    print(f"all: {noticed.total()} of {tried.total()} noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
