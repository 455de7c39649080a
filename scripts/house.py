"""Measure the structure of the package `gateway/` of a checkout, and hold it to limits.

    python scripts/house.py --root CHECKOUT --json > before.json
    python scripts/house.py --compare before.json after.json
    python scripts/house.py --guard

The figures come from the source alone (`house_source.py`, which says how imports are counted) and
from one traced chat request (`house_trace.py`, which says what a move is; `--no-trace` leaves it
out). The trace runs with the Python that runs this, which must have what the gateway needs.

A room is an entry of the package's own folder: a module or a package. A circle is a set of modules,
or of rooms, that import each other. An upward import goes against the `layers` contracts of the
checkout's pyproject.toml, whether or not the contract ignores it.

The size of the package is counted in AST nodes: what a reader has to understand, which no way to
write the same code changes. Lines are a reading, and no limit is set for them.

The limits of `--guard` are the table `[tool.house.limits]` of the checkout's pyproject.toml: names
of figures, each with its largest allowed value; `[tool.house.allowances]` has the AST nodes that a
feature may add beyond them. The limits of the trace are `[tool.house.trace-limits]`
and are not looked at with `--no-trace`. A limit is lowered when a change reaches a smaller
figure, and not raised without a reason in the commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import house_source as source

PACKAGE = "gateway"
CORE = "gateway.core"
FEATURES = "gateway.features"
MANY_FIELDS = 8
LONG_FUNCTION = 50
LONG_MODULE, VERY_LONG_MODULE = 250, 500
SMALL_MODULE = 40
TRACE_S = 180

Measured = dict[str, Any]
"""`figures`: number per name. `lists`: the names behind some of them."""


def measure(root: Path, *, trace: bool) -> Measured:
    """All figures of one checkout."""
    modules = source.read_package(root, PACKAGE)
    if not modules:
        raise SystemExit(f"house: no package {PACKAGE} in {root}")
    parts = [
        sizes(root, modules),
        imports(root, modules),
        core(root, modules),
        shapes(modules),
        prose(root, modules),
    ]
    parts.append(packing(modules))
    if trace:
        parts.append(traced(root))
    return {kind: _joined(kind, parts) for kind in ("figures", "lists")}


def sizes(root: Path, modules: Mapping[str, source.Module]) -> Measured:
    """How much there is."""
    top = [n for n, m in modules.items() if n.count(".") == 1 and not m.is_package]
    lines = {name: module.lines for name, module in modules.items()}
    return {
        "figures": {
            "AST nodes": sum(source.nodes(module) for module in modules.values()),
            "modules": len(modules),
            "packages": sum(module.is_package for module in modules.values()),
            "lines of Python": sum(lines.values()),
            "lines with a comment": sum(source.comments(module) for module in modules.values()),
            "lines of all files but model data": source.text_lines(root / PACKAGE),
            "top-level modules": len(top),
            f"modules over {LONG_MODULE} lines": len(_over(LONG_MODULE, lines)),
            f"modules over {VERY_LONG_MODULE} lines": len(_over(VERY_LONG_MODULE, lines)),
        },
        "lists": {"top-level modules": top, "long modules": _over(LONG_MODULE, lines)},
    }


def imports(root: Path, modules: Mapping[str, source.Module]) -> Measured:
    """How the modules depend on each other."""
    graph = source.import_graph(modules)
    rooms = source.rooms_graph({n: t for n, t in graph.items() if n != PACKAGE})
    rooms = {room: targets - {PACKAGE} for room, targets in rooms.items()}
    contracts = source.layer_contracts(root)
    not_offered, not_taken = source.between(modules, FEATURES)
    lists = {
        "imports between features that the other does not offer": not_offered,
        "offers that no other feature takes": not_taken,
        "upward imports": [" -> ".join(arrow) for arrow in source.upward(graph, contracts)],
        "module circles": [" <-> ".join(circle) for circle in source.circles(graph)],
        "room circles": [" <-> ".join(circle) for circle in source.circles(rooms)],
        "modules without a layer": source.without_layer(set(graph) - {PACKAGE}, contracts),
        "modules with one importer": _single_use(modules, graph),
        "small modules with one importer": _small_of(modules, _single_use(modules, graph)),
    }
    figures = {
        "rooms": len(rooms),
        "arrows between modules": len(source.arrows(graph)),
        "arrows between rooms": len(source.arrows(rooms)),
        f"modules up to {SMALL_MODULE} lines": len(_small_of(modules, modules)),
    }
    return {
        "figures": figures | {name: len(found) for name, found in lists.items()},
        "lists": lists,
    }


def core(root: Path, modules: Mapping[str, source.Module]) -> Measured:
    """The modules that a reader of the decision needs: those of the core, and all that it reaches
    by imports and by the names of classes in its tables."""
    own = [name for name in modules if f"{name}.".startswith(f"{CORE}.")]
    named = source.named_modules(root.joinpath(*CORE.split(".")), modules)
    reached = source.closure(source.import_graph(modules), [*own, *named])
    nodes = {name: source.nodes(modules[name]) for name in reached}
    return {
        "figures": {
            "core, nodes": sum(nodes[name] for name in own),
            "closure of the core, nodes": sum(nodes.values()),
        },
        "lists": {
            "reached from the core": [f"{n} {nodes[n]}" for n in sorted(reached - {*own})],
        },
    }


def shapes(modules: Mapping[str, source.Module]) -> Measured:
    """How large classes and functions are."""
    classes: dict[str, int] = {}
    functions: dict[str, int] = {}
    for module in modules.values():
        classes |= source.class_fields(module)
        functions |= source.function_lengths(module)
    lists = {
        f"classes with more than {MANY_FIELDS} fields": _over(MANY_FIELDS, classes),
        f"functions over {LONG_FUNCTION} lines": _over(LONG_FUNCTION, functions),
    }
    return {"figures": {name: len(found) for name, found in lists.items()}, "lists": lists}


def prose(root: Path, modules: Mapping[str, source.Module]) -> Measured:
    """Sentences that are missing, hard to read, or not in the field's standard terms."""
    lists = {
        "docstrings that begin with a question word": [
            place for module in modules.values() for place in source.question_docstrings(module)
        ],
        "lines with private words": [
            place for module in modules.values() for place in source.private_words(module)
        ],
        "fields without a word": [
            place for module in modules.values() for place in source.undocumented_fields(module)
        ],
        f"template lines over {source.TEMPLATE_COLUMNS} characters": [
            *source.long_template_lines(root / PACKAGE)
        ],
    }
    return {"figures": {name: len(found) for name, found in lists.items()}, "lists": lists}


def packing(modules: Mapping[str, source.Module]) -> Measured:
    """Forms that a linter refuses, and conditional expressions."""
    lists: dict[str, list[str]] = {}
    for module in modules.values():
        for form, places in source.packed(module).items():
            lists.setdefault(form, []).extend(places)
    lists["calls with more than three positional arguments"] = source.long_calls(modules.values())
    return {"figures": {name: len(found) for name, found in lists.items()}, "lists": lists}


def traced(root: Path) -> Measured:
    """The moves of one chat request through that checkout's gateway."""
    script = Path(__file__).with_name("house_trace.py")
    paths = (root, root / "packages" / "steering-gateway-testing")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path.resolve()) for path in paths)}
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory, "moves.json")
        # Away from the checkout, so that no config.yaml is read.
        ended = subprocess.run(
            [sys.executable, str(script), str(result)],
            cwd=directory,
            env=env,
            capture_output=True,
            text=True,
            timeout=TRACE_S,
            check=False,
        )
        if not result.exists():
            raise SystemExit(f"house: the trace failed\n{ended.stdout}\n{ended.stderr}")
        found = json.loads(result.read_text(encoding="utf-8"))
    figures = {
        "moves of a chat request": found["moves"],
        "bounces among them": found["bounces"],
        "modules it visits": len(found["modules"]),
        "rooms it visits": len({name.split(".")[1] for name in found["modules"]}),
    }
    return {"figures": figures, "lists": {"modules visited": found["modules"]}}


def table(measured: Measured, *, lists: bool = True) -> str:
    """The figures, and below them the names behind them."""
    lines = [f"{name:<44}{value:>8,}" for name, value in measured["figures"].items()]
    for title, names in measured["lists"].items() if lists else ():
        lines += ["", f"{title}:", *(f"  {name}" for name in names)]
    return "\n".join(lines)


def comparison(before: Measured, after: Measured) -> str:
    """The figures of both next to each other; a figure that one of them lacks is `-`."""
    old, new = before["figures"], after["figures"]
    lines = [f"{'':<44}{'before':>9}{'after':>9}{'change':>9}"]
    for name in [*old, *(name for name in new if name not in old)]:
        known = name in old and name in new
        cells = [f"{old[name]:,}" if name in old else "-", f"{new[name]:,}" if name in new else "-"]
        cells.append(f"{new[name] - old[name]:+,}" if known else "-")
        lines.append(f"{name:<44}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def beyond_limits(root: Path, figures: Mapping[str, int], *, trace: bool) -> list[str]:
    """The figures that are larger than their limit, as lines for people. `trace`: those of the
    trace are among them.

    Raises: SystemExit when a limit names no figure."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    house = config.get("tool", {}).get("house", {})
    limits: dict[str, int] = house.get("limits", {})
    if trace:
        limits |= house.get("trace-limits", {})
    if allowed := house.get("allowances", {}):
        limits["AST nodes"] += sum(allowed.values())
    if unknown := sorted(name for name in limits if name not in figures):
        raise SystemExit(f"house: no figure {', '.join(unknown)} (tool.house.limits)")
    return [
        f"{name}: {figures[name]:,}, limit {limit:,}"
        for name, limit in limits.items()
        if figures[name] > limit
    ]


def main() -> None:
    """Measure or compare, and print; with `--guard`, end with 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="a checkout")
    parser.add_argument("--json", action="store_true", help="one JSON object, for --compare")
    parser.add_argument("--no-trace", action="store_true", help="start no gateway")
    parser.add_argument("--guard", action="store_true", help="only check the limits")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    args = parser.parse_args()
    if args.compare:
        print(comparison(*(json.loads(path.read_text(encoding="utf-8")) for path in args.compare)))
        return
    measured = measure(args.root, trace=not args.no_trace)
    if args.guard:
        if beyond := beyond_limits(args.root, measured["figures"], trace=not args.no_trace):
            raise SystemExit("house: over the limits\n" + "\n".join(f"  {line}" for line in beyond))
        return
    print(json.dumps(measured, indent=1) if args.json else table(measured))


def _joined(kind: str, parts: list[Measured]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part[kind].items()}


def _over(limit: int, counts: Mapping[str, int]) -> list[str]:
    """What is above a limit, largest first, with its count."""
    found = sorted((-count, name) for name, count in counts.items() if count > limit)
    return [f"{name} {-count}" for count, name in found]


def _single_use(modules: Mapping[str, source.Module], graph: source.Graph) -> list[str]:
    """Modules that one other module imports, without the `__init__.py` files."""
    importers = Counter(target for targets in graph.values() for target in targets)
    return [n for n, module in modules.items() if importers[n] == 1 and not module.is_package]


def _small_of(modules: Mapping[str, source.Module], names: Iterable[str]) -> list[str]:
    """Modules of few lines, without the `__init__.py` files."""
    found = ((name, modules[name]) for name in names)
    return [n for n, m in found if m.lines <= SMALL_MODULE and not m.is_package]


if __name__ == "__main__":
    main()
