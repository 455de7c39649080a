"""`scripts/house.py` counts what is there."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "house.py"
FIELDS = "\n".join(f"    f{i}: int" for i in range(8))
FILES = {
    "pyproject.toml": """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["gateway.high", "gateway.low : gateway.circle"]
ignore_imports = ["gateway.low.b -> gateway.high"]
""",
    "gateway/__init__.py": "",
    "gateway/high.py": "from gateway import loose\nimport gateway.low.a\n",
    "gateway/loose.py": f"""
from typing import ClassVar
class Nine:
{FIELDS}
    shared: ClassVar[int] = 0
    def __init__(self):
        self.f0, self.one_more = 0, 0
class Eight:
{FIELDS}
class Said:
    at: float  # epoch seconds
    # shared
    every: int
    limit: int = described("Most rows.")
    bare: str
first, rest = loaded()
pair = (*(1, 2), *rest)
value = 1 if first else 2 if rest else 3
def many(a, b, c, d): ...
def any_number(*given): ...
many(1, 2, 3, 4), many(1, 2, 3, d=4), any_number(1, 2, 3, 4)
""",
    "gateway/low/__init__.py": "from .b import late\n",
    "gateway/low/a.py": "from .b import name\nfrom . import b\nimport json\n" + "#\n" * 260,
    "gateway/low/b.py": "def late():\n    from gateway.high import name\n" + "    x = 1\n" * 49,
    "gateway/circle/__init__.py": 'def f():\n    """What is told\n    two."""\n'
    + "    x = 1\n" * 49,
    "gateway/circle/data/rows.npy": "",
    "gateway/circle/data/vocab.txt": "one\ntwo\n",
    "gateway/circle/words.txt": "one\ntwo\nthree\n",
    "gateway/circle/templates/page.html": "x" * 120 + "\n" + "x" * 121 + "\n",
}
COUNTED = {
    "core, nodes": 0,
    "closure of the core, nodes": 0,
    "AST nodes": 453,
    "modules": 7,
    "packages": 3,
    "lines of Python": 404,
    "lines with a comment": 2,
    "lines of all files but model data": 409,
    "top-level modules": 2,
    "modules over 250 lines": 1,
    "modules over 500 lines": 0,
    "rooms": 4,
    "arrows between modules": 5,
    "arrows between rooms": 3,
    "modules up to 40 lines": 2,
    "imports between features that the other does not offer": 0,
    "offers that no other feature takes": 0,
    "upward imports": 1,
    "module circles": 1,
    "room circles": 1,
    "modules without a layer": 1,
    "modules with one importer": 3,
    "small modules with one importer": 2,
    "classes with more than 8 fields": 1,
    "functions over 50 lines": 1,
    "docstrings that begin with a question word": 1,
    "lines with private words": 1,
    "fields without a word": 17,
    "template lines over 120 characters": 1,
    "tuple assignments": 1,
    "stars before a written tuple": 1,
    "conditional expressions": 2,
    "nested conditional expressions": 1,
    "calls with more than three positional arguments": 1,
}


def house(*arguments: str | Path) -> str:
    """What the script prints."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def measured(*arguments: str | Path) -> Any:
    """The figures and lists as JSON."""
    return json.loads(house("--json", *arguments))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package small enough to count by hand."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_package_is_counted_as_by_hand(checkout: Path) -> None:
    """Every figure that is read from the source, with the names behind it."""
    found = measured("--no-trace", "--root", checkout)
    assert found["figures"] == COUNTED
    lists = found["lists"]
    assert lists["upward imports"] == ["gateway.low.b -> gateway.high"]
    assert lists["module circles"] == ["gateway.high <-> gateway.low.a <-> gateway.low.b"]
    assert lists["room circles"] == ["gateway.high <-> gateway.low"]
    assert lists["modules without a layer"] == ["gateway.loose"]
    assert lists["classes with more than 8 fields"] == ["gateway.loose.Nine 9"]
    assert lists["tuple assignments"] == ["gateway.loose:14"]
    assert lists["functions over 50 lines"] == ["gateway.low.b.late:1 51"]


def test_the_core_is_counted_with_all_that_it_reaches(tmp_path: Path) -> None:
    """By imports, and by names of classes in its tables; what imports the core does not count."""
    files = {
        "__init__.py": "",
        "core/__init__.py": "",
        "core/step.py": "from gateway.below import name\nSCORERS = ['gateway.named:Scorer']\n",
        "core/table.json": '{"class": "gateway.listed:Monitor"}',
        "below.py": "import gateway.deeper\n",
        "deeper.py": "x = 1\n",
        "named.py": "y = 1\n",
        "listed.py": "z = 1\n",
        "above.py": "import gateway.core.step\n",
    }
    for name, text in files.items():
        path = tmp_path / "gateway" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text("")
    found = measured("--no-trace", "--root", tmp_path)
    reached = {line.split()[0] for line in found["lists"]["reached from the core"]}
    assert reached == {f"gateway.{name}" for name in ("below", "deeper", "named", "listed")}
    figures = found["figures"]
    every = figures["closure of the core, nodes"] + 2  # the two nodes of `above`
    assert (every, 0 < figures["core, nodes"] < every) == (figures["AST nodes"], True)


def test_imports_between_features_that_are_not_offered_are_named(tmp_path: Path) -> None:
    """Of another feature, wherever in a module and in either form of the statement."""
    files = {
        "a/__init__.py": 'OFFERS = ("x:one", "x:two")',
        "a/x.py": "from gateway.features.a import y",
        "a/y.py": "from gateway import core",
        "b.py": "from gateway.features.a.x import one, three\n"
        "def f():\n    import gateway.features.a.y",
    }
    for name, text in files.items():
        path = tmp_path / "gateway/features" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text("")
    lists = measured("--no-trace", "--root", tmp_path)["lists"]
    assert lists["imports between features that the other does not offer"] == [
        "gateway.features.b takes a.x:three",
        "gateway.features.b takes a.y:",
    ]
    assert lists["offers that no other feature takes"] == ["a.x:two"]


def test_a_figure_over_its_limit_is_named(checkout: Path) -> None:
    """The guard ends with 1, the figure and the limit; figures at their limits pass."""
    pyproject = checkout / "pyproject.toml"
    contracts = pyproject.read_text()
    guard = [sys.executable, str(SCRIPT), "--guard", "--no-trace", "--root", str(checkout)]
    traced = '[tool.house.trace-limits]\n"moves of a chat request" = 1\n'  # no request is traced
    for modules, message in ((7, ""), (6, "modules: 7, limit 6")):
        limits = f"[tool.house.limits]\nmodules = {modules}\n{traced}"
        pyproject.write_text(f"{contracts}\n{limits}")
        ended = subprocess.run(guard, capture_output=True, text=True, check=False)
        assert (ended.returncode, message in ended.stderr) == (bool(message), True)


def test_an_allowance_is_added_to_the_limit_on_size(checkout: Path) -> None:
    """What a feature may add stands in a table of its own; the limit itself stays."""
    pyproject = checkout / "pyproject.toml"
    contracts = pyproject.read_text()
    guard = [sys.executable, str(SCRIPT), "--guard", "--no-trace", "--root", str(checkout)]
    nodes = measured("--no-trace", "--root", checkout)["figures"]["AST nodes"]
    for allowed in (2, 1):
        pyproject.write_text(
            f'{contracts}\n[tool.house.limits]\n"AST nodes" = {nodes - 2}\n'
            f"[tool.house.allowances]\na = {allowed}\n"
        )
        ended = subprocess.run(guard, capture_output=True, text=True, check=False)
        assert ended.returncode == (allowed < 2)


@pytest.mark.nightly
def test_the_import_graph_is_that_of_import_linter() -> None:
    """The arrows of this package are those which the library behind import-linter finds."""
    graph = grimp.build_graph("gateway", cache_dir=None)
    found = measured("--no-trace")["figures"]
    assert found["modules"] == len(graph.modules)
    assert found["arrows between modules"] == graph.count_imports()


def test_two_measurements_are_compared(tmp_path: Path) -> None:
    """Figures next to each other with the change; what one lacks is left open."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"figures": {"modules": 1200, "gone": 3}, "lists": {}}))
    after.write_text(json.dumps({"figures": {"modules": 265, "added": 1}, "lists": {}}))
    rows = [line.split() for line in house("--compare", before, after).splitlines()]
    assert rows == [
        ["before", "after", "change"],
        ["modules", "1,200", "265", "-935"],
        ["gone", "3", "-", "-"],
        ["added", "-", "1", "-"],
    ]


def test_a_move_is_two_calls_in_a_row_in_different_modules() -> None:
    """Returns, other packages and the scripted provider do not count; a resumed generator does."""
    counter = runpy.run_path(str(SCRIPT.with_name("house_trace.py")))["MoveCounter"]()
    outside = a_module("json.other", "def f(): pass")
    provider = a_module("gateway.testing.values", "def f(): pass")
    b = a_module("gateway.b", "def f(): pass\ndef g():\n    yield 1\n    yield 2")
    a = a_module("gateway.a", "def f(others):\n    for other in others: other()\ndef g(): pass")

    def play() -> None:
        values = b.g()
        a.f([b.f, outside.f, provider.f, b.f])  # a, then b twice: one move
        a.g()
        next(values)
        a.g()
        next(values)
        a.f([b.f])
        b.f()  # the return to a is no move

    sys.setprofile(counter)
    try:
        play()
        counter.on = True
        play()
        counter.on = False
        play()
    finally:
        sys.setprofile(None)
    assert counter.result == (7, 6, ["gateway.a", "gateway.b"])  # each but the first goes back


@pytest.mark.nightly
def test_a_chat_request_is_traced_through_a_running_gateway() -> None:
    """It passes through the decision and the store."""
    found = measured()
    visited, figures = found["lists"]["modules visited"], found["figures"]
    assert "gateway.core.fsm" in visited
    assert any(name.startswith("gateway.stores.sqlite.") for name in visited)
    assert figures["modules it visits"] == len(visited)
    assert figures["moves of a chat request"] >= len(visited) - 1


def a_module(name: str, text: str) -> types.ModuleType:
    """A module of that name, which is not installed."""
    module = types.ModuleType(name)
    exec(text, module.__dict__)  # noqa: S102 - the test's own text
    return module
