"""What the source of a package looks like: modules, import graph, layers, classes and functions.

Everything is read from the files; nothing is imported. `house.py` makes figures of it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

Arrow = tuple[str, str]
"""Importing module, imported module: dotted names."""
Graph = Mapping[str, Set[str]]
"""Per module, the modules of the package that it imports."""
Layers = Mapping[str, int]
"""Rank per dotted name in a contract; 0 is the highest layer."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_CLASS = re.compile(r"[\"']([a-z_]+(?:\.[a-z_0-9]+)+):[A-Z]\w*[\"']")
QUESTION_WORDS = ("What", "How", "Which", "Where", "Who")
"""A docstring begins with a noun phrase or an imperative, never with one of these."""
PRIVATE_WORDS = re.compile(r"\b(?:anew|told|goes on from|be it|whom)\b")
"""Words that the field does not use for what they meant here."""
_COMMENT = re.compile(r"^\s*# |  # ")
TEMPLATE_FOLDERS = ("templates", "page_files")
TEMPLATE_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def read_package(root: Path, package: str) -> dict[str, Module]:
    """All modules of a package by dotted name, `__init__.py` under the name of its folder."""
    modules = {}
    for path in sorted((root / package).rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text))
    return modules


def nodes(module: Module) -> int:
    """Syntax nodes that have a line number; those without one, such as a name's context, are none
    that a reader sees."""
    return sum(hasattr(node, "lineno") for node in ast.walk(module.tree))


def text_lines(folder: Path) -> int:
    """Lines of all text files, without those of folders that hold arrays (`.npy`): model data."""
    lines = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts or any(path.parent.glob("*.npy")):
            continue
        try:
            lines += len(path.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError:
            continue
    return lines


# The import graph.


def import_graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Which module imports which, once per pair, wherever in the file the import is.

    As import-linter counts: `from package import name` is an import of `package.name` where that
    is a module, else of `package`; imports under TYPE_CHECKING and inside functions count too.
    """
    graph = {}
    for module in modules.values():
        nodes = ast.walk(module.tree)
        found = {name for node in nodes for name in _targets(node, module, modules)}
        graph[module.name] = found - {module.name}
    return graph


def arrows(graph: Graph) -> list[Arrow]:
    """All arrows of a graph."""
    return sorted((name, target) for name, targets in graph.items() for target in targets)


def rooms_graph(graph: Graph) -> dict[str, set[str]]:
    """The graph between the entries of the package's own folder: its modules and packages."""
    rooms: dict[str, set[str]] = {}
    for name, targets in graph.items():
        own = _room(name)
        rooms.setdefault(own, set()).update({_room(target) for target in targets} - {own})
    return rooms


def circles(graph: Graph) -> list[list[str]]:
    """Sets of modules that import each other, directly or through others of the set."""
    reached = {name: _reachable(graph, name) for name in graph}
    found = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted(sorted(circle) for circle in found)


def closure(graph: Graph, seeds: Iterable[str]) -> set[str]:
    """These modules and all that they reach."""
    return {name for seed in seeds for name in (seed, *_reachable(graph, seed))}


def named_modules(folder: Path, modules: Collection[str]) -> set[str]:
    """The modules of the package that the files of a folder name as the place of a class, written
    `module:Class`; a table loads them without an import."""
    named: set[str] = set()
    for path in folder.rglob("*"):
        if path.suffix in (".py", ".json", ".toml"):
            named.update(_CLASS.findall(path.read_text(encoding="utf-8")))
    return named & {*modules}


def between(modules: Mapping[str, Module], folder: str) -> tuple[list[str], list[str]]:
    """Imports between the packages of a folder that the other one does not offer, and offers that
    no other one takes. A package offers `module:name` in the tuple `OFFERS` of its `__init__.py`.
    """
    offered: set[str] = set()
    taken: dict[str, str] = {}
    for module in modules.values():
        if not module.name.startswith(f"{folder}."):
            continue
        package, _, own = module.name.removeprefix(f"{folder}.").partition(".")
        if not own:
            offered |= {f"{package}.{offer}" for offer in _offers(module)}
        found = {name for node in ast.walk(module.tree) for name in _names(node, module)}
        others = [name.removeprefix(f"{folder}.") for name in found if name.startswith(folder)]
        own_names = (f"{package}.", f"{package}:")
        taken |= {name: module.name for name in others if not name.startswith(own_names)}
    missing = [f"{by} takes {name}" for name, by in taken.items() if name not in offered]
    return sorted(missing), sorted(offered - taken.keys())


def _names(node: ast.AST, module: Module) -> Iterator[str]:
    """What an import names, as `module:name`; without a name where it is a whole module."""
    if isinstance(node, ast.Import):
        yield from (f"{each.name}:" for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{_base(node, module)}:{each.name}" for each in node.names)


def _offers(module: Module) -> list[str]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OFFERS":
            return list(ast.literal_eval(node.value))
    return []


def _targets(node: ast.AST, module: Module, known: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
        base = _base(node, module)
        for name in (f"{base}.{alias.name}" for alias in node.names):
            if name in known:
                yield name
            elif base in known:
                yield base


def _base(node: ast.ImportFrom, module: Module) -> str:
    """The absolute name of what an import statement imports from."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = len(parts) - node.level + module.is_package
    return ".".join([*parts[:above], *([node.module] if node.module else [])])


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


# The layers that the checkout itself declares.


def layer_contracts(root: Path) -> list[Layers]:
    """The ranks of import-linter's `layers` contracts in pyproject.toml.

    One mapping per contract, or per container of a contract. `ignore_imports` is not read: what it
    lists goes against the order.
    """
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config.get("tool", {}).get("importlinter", {}).get("contracts", [])
    found: list[Layers] = []
    for contract in contracts:
        if contract["type"] != "layers":
            continue
        for container in contract.get("containers") or [""]:
            prefix = f"{container}." if container else ""
            found.append(
                {
                    prefix + name.strip(" ()"): rank
                    for rank, layer in enumerate(contract["layers"])
                    for name in re.split("[:|]", layer)
                }
            )
    return found


def upward(graph: Graph, contracts: Collection[Layers]) -> list[Arrow]:
    """Imports of a higher layer by a lower one, under any of the contracts."""
    return [
        (name, target)
        for name, target in arrows(graph)
        if any(_rises(name, target, layers) for layers in contracts)
    ]


def without_layer(names: Collection[str], contracts: Collection[Layers]) -> list[str]:
    """Modules that no contract names; they may import what they like."""
    return sorted(
        name for name in names if all(_rank(name, layers) is None for layers in contracts)
    )


def _rises(name: str, target: str, layers: Layers) -> bool:
    below, above = _rank(name, layers), _rank(target, layers)
    return below is not None and above is not None and above < below


def _rank(name: str, layers: Layers) -> int | None:
    """The rank of the module or of the nearest package around it that has one."""
    while name not in layers and "." in name:
        name = name.rpartition(".")[0]
    return layers.get(name)


# Classes and functions.


def class_fields(module: Module) -> dict[str, int]:
    """Fields per class: annotated in its body, but no `ClassVar`, or set on self in `__init__`."""
    return {
        f"{module.name}.{node.name}": len(set(_fields(node)))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }


def function_lengths(module: Module) -> dict[str, int]:
    """Lines per function from `def` to its last line, without those of its docstring."""
    return {
        f"{module.name}.{node.name}:{node.lineno}": _length(node)
        for node in ast.walk(module.tree)
        if isinstance(node, FunctionNode)
    }


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if "ClassVar" not in ast.unparse(part.annotation):
                yield part.target.id
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            yield from (
                found.attr
                for found in ast.walk(part)
                if isinstance(found, ast.Attribute)
                and isinstance(found.ctx, ast.Store)
                and isinstance(found.value, ast.Name)
                and found.value.id == "self"
            )


def _length(node: FunctionNode) -> int:
    first = node.body[0]
    docstring = 0
    if ast.get_docstring(node, clean=False) is not None:
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


# Sentences.


def undocumented_fields(module: Module) -> Iterator[str]:
    """Line and name of each field without a word where it stands: neither a comment, at the end of
    the line or above it, nor a description for the API's document."""
    lines = module.text.splitlines()
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for part in node.body:
            if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
                continue
            if ast.unparse(part.annotation).startswith(("ClassVar", "KW_ONLY")) or _is_described(
                part
            ):
                continue
            above = lines[part.lineno - 2].lstrip()
            own = lines[part.lineno - 1 : part.end_lineno]
            if not (above.startswith("# ") or any("  # " in line for line in own)):
                yield f"{module.name}:{part.lineno} {node.name}.{part.target.id}"


def comments(module: Module) -> int:
    """Lines that are or end with a comment."""
    return sum(bool(_COMMENT.search(line)) for line in module.text.splitlines())


def _is_described(field: ast.AnnAssign) -> bool:
    """Whether it is a field of a pydantic model that says its meaning by itself."""
    calls = [node for node in ast.walk(field) if isinstance(node, ast.Call)]
    named = any(ast.unparse(call.func).endswith("described") for call in calls)
    return named or any(word.arg == "description" for call in calls for word in call.keywords)


def long_template_lines(folder: Path) -> Iterator[str]:
    """File and number of each line of a page's template with more than TEMPLATE_COLUMNS."""
    for path in sorted(folder.rglob("*")):
        if path.parent.name not in TEMPLATE_FOLDERS or path.suffix not in (".html", ".txt"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > TEMPLATE_COLUMNS:
                yield f"{path.relative_to(folder)}:{number}"


def question_docstrings(module: Module) -> Iterator[str]:
    """Line and beginning of each docstring that begins with a question word."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | FunctionNode):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0] in QUESTION_WORDS:
                yield f"{module.name}:{getattr(node, 'lineno', 1)} {' '.join(words[:8])}"


def private_words(module: Module) -> Iterator[str]:
    """Number and text of each line with a private word."""
    for number, line in enumerate(module.text.splitlines(), 1):
        if PRIVATE_WORDS.search(line):
            yield f"{module.name}:{number} {line.strip()[:80]}"


def packed(module: Module) -> dict[str, list[str]]:
    """Places of forms that hide several ideas in one expression, by the name of the form.

    A tuple may be assigned to several names from a call or a loop, not from one that is written
    there; a star before a written tuple or list and a conditional expression inside another one
    are never needed.
    """
    forms: dict[str, list[str]] = {"tuple assignments": [], "stars before a written tuple": []}
    conditional = forms["conditional expressions"] = []
    nested = forms["nested conditional expressions"] = []
    for node in ast.walk(module.tree):
        place = f"{module.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            if any(isinstance(value, ast.Tuple) for value in _branches(node.value)):
                forms["tuple assignments"].append(place)
        elif isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
            if isinstance(node.ctx, ast.Load):
                forms["stars before a written tuple"].append(place)
        elif isinstance(node, ast.IfExp):
            conditional.append(place)
            if any(isinstance(inner, ast.IfExp) for inner in _below(node)):
                nested.append(place)
    return forms


def _branches(value: ast.expr) -> Iterator[ast.expr]:
    """The expressions of which one is the value."""
    if isinstance(value, ast.IfExp):
        yield from (*_branches(value.body), *_branches(value.orelse))
    elif isinstance(value, ast.BoolOp):
        for each in value.values:
            yield from _branches(each)
    else:
        yield value


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes in it, but not itself."""
    nodes = ast.walk(node)
    next(nodes)
    return nodes


def long_calls(modules: Iterable[Module]) -> list[str]:
    """Calls of the package's own functions and classes with more than three positional arguments,
    of which only the position says what they mean. Functions that take any number are left out."""
    modules = list(modules)
    own: dict[str, bool] = {}
    for node in (node for module in modules for node in ast.walk(module.tree)):
        if isinstance(node, ast.ClassDef):
            own.setdefault(node.name, True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own[node.name] = own.get(node.name, True) and node.args.vararg is None
    return [
        f"{module.name}:{node.lineno} {name}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and len(node.args) > 3
        if own.get(name := _called(node.func)) and not _has_star(node)
    ]


def _called(function: ast.expr) -> str:
    """The name of what is called, without what it is an attribute of."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _has_star(call: ast.Call) -> bool:
    return any(isinstance(each, ast.Starred) for each in call.args)
