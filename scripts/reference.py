"""Make the reference pages of docs/reference from the code: configuration, commands, API.

    python scripts/reference.py            # `make reference` writes the pages
    python scripts/reference.py --check    # says which of them are out of date

`tests/docs/test_reference.py` fails while a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.api.routes import openapi, operations
from gateway.cli import build_parser, tree

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
MADE = "<!-- Made by `make reference`; do not edit. -->\n"

_KEY = re.compile(r"( *)([\w\"]+):(?: (.*?))?(?: +# (.*))?$")


def pages() -> dict[str, str]:
    """The text of each page, by file name."""
    return {
        "configuration.md": MADE + "\n".join(configuration()) + "\n",
        "cli.md": MADE + "\n".join(commands()) + "\n",
        "api.md": MADE + "\n".join(api()) + "\n",
    }


def configuration() -> Iterator[str]:
    """Every key of config.yaml, which a test keeps equal to the settings, with its default."""
    yield "# Configuration\n"
    yield (
        "Every key, its default and its meaning. No file is needed; `gateway serve` reads "
        "`./config.yaml`, or the file that `--config` or `GATEWAY_CONFIG` names, and "
        "`gateway check-config` says what is wrong with it. Any key can be set by a variable: "
        "`GATEWAY_` and the keys joined by two underscores, so `GATEWAY_SERVER__PORT=9000` sets "
        "`server.port`; lists and maps are written as YAML or JSON.\n"
    )
    parents, above, in_table = [""], list[str](), False
    lines = (ROOT / "config.yaml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        found = _KEY.match(line)
        if line.startswith("#"):
            above.append(line.lstrip("#").removeprefix(" "))
        elif found is None:
            above = above if line.strip() else []
        else:
            depth, name = len(found[1]) // 2, found[2].strip('"')
            parents = [*parents[: depth + 1], name]
            path, value, meaning = ".".join(parents[1:]), found[3], found[4] or ""
            if depth == 0:
                in_table = False
                below = _KEY.match(lines[number + 1]) if number + 1 < len(lines) else None
                inner = below[2] if value is None and below is not None else ""
                yield from _section(path, above, inner)
                above = []
            if value is not None or depth:
                if not in_table:
                    yield "\n| key | default | meaning |\n| --- | --- | --- |"
                    in_table = True
                shown = f"`{value}`" if value is not None else ""
                yield f"| `{path}` | {_cell(shown)} | {_cell(meaning)} |"


def _section(path: str, above: list[str], inner: str) -> Iterator[str]:
    """A heading with what stands above the key; an example is of the key, or of its first one."""
    yield f"\n## {path}\n"
    prose = [line for line in above if not line.startswith("  ")]
    example = [line[2:] for line in above if line.startswith("  ")]
    if prose:
        yield " ".join(prose)
    if example:
        heads = [path, *([f"  {inner}"] if inner else [])]
        indent = "  " * len(heads)
        body = [f"{head}:" for head in heads] + [indent + line for line in example]
        yield "\n```yaml\n" + "\n".join(body) + "\n```"


def commands() -> Iterator[str]:
    """Every command with its arguments, from the parsers."""
    yield "# Commands\n"
    yield (
        "`gateway` and `steering-gateway` are the same program. `gateway COMMAND --help` prints "
        "this. Exit status: 0 done, 1 failed, 2 wrong usage or config; `gateway wrap` ends "
        "with the status of its command.\n"
    )
    for path, parser, said in tree(build_parser()):
        if not path:
            continue
        yield f"\n## gateway {' '.join(path)}\n"
        if said:
            yield f"{said[0].upper()}{said[1:]}.\n"
        rows = [row for action in parser._actions if (row := _argument(action))]
        if rows:
            yield "| argument | meaning |\n| --- | --- |"
            yield from rows


def _argument(action: argparse.Action) -> str:
    hidden = action.help == argparse.SUPPRESS
    if hidden or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
        return ""
    names = ", ".join(action.option_strings)
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    if not names:
        shown = str(value)
    elif action.nargs == 0:
        shown = names
    else:
        shown = f"{names} [{value}]" if action.nargs == "?" else f"{names} {value}"
    return f"| `{shown}` | {_cell((action.help or '').replace('%%', '%'))} |"


def api() -> Iterator[str]:
    """Every operation of the control plane, from its OpenAPI document."""
    document = openapi(operations())
    yield "# API of the control plane\n"
    yield (
        f"{document['info']['description']} The same as a machine reads it: `/api/openapi.json` of "
        "a running gateway. Without an admin key it is open on loopback; otherwise a key goes into "
        "`Authorization: Bearer`, `x-api-key` or `x-gateway-key`.\n"
    )
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"\n## {method.upper()} {path}\n"
            yield f"{operation['summary']}\n"
            yield from _parameters(operation.get("parameters", []))
            yield from _answers(operation)
    yield "\n## Objects"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _object(name, schema)


def _parameters(parameters: list[Mapping[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "| parameter | in | type | meaning |\n| --- | --- | --- | --- |"
    for each in parameters:
        kind = _type(each.get("schema", {}))
        yield f"| `{each['name']}` | {each['in']} | {kind} | {_cell(each.get('description', ''))} |"


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    if body := operation.get("requestBody"):
        yield f"\nBody: {_content(body)}."
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            yield f"\n{status}: {_content(answer)}. {answer.get('description', '')}"
    refused = [status for status in operation["responses"] if not status.startswith("2")]
    if refused:
        yield f"\nErrors: {', '.join(refused)}."


def _content(part: Mapping[str, Any]) -> str:
    kinds = [
        f"{kind}, {_type(content.get('schema', {}))}"
        for kind, content in part.get("content", {}).items()
    ]
    return " or ".join(kinds) or "nothing"


def _object(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n"
    if said := schema.get("description"):
        yield _cell(said.split("\n\n")[0]) + "\n"
    if properties := schema.get("properties"):
        yield "| key | type |\n| --- | --- |"
        for key, value in properties.items():
            yield f"| `{key}` | {_type(value)} |"
    else:
        yield _type(schema)


def _type(schema: Mapping[str, Any]) -> str:
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[word]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if properties := schema.get("properties"):
        return "object of " + ", ".join(f"`{key}` ({_type(v)})" for key, v in properties.items())
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    more = schema.get("additionalProperties")
    return f"map of {_type(more)}" if kind == "object" and isinstance(more, Mapping) else str(kind)


def _cell(text: str) -> str:
    """Text for a cell of a table; what is no code keeps its asterisks and angle brackets."""
    line = " ".join(text.replace("|", "\\|").split())
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts
    )


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    old = []
    for name, text in pages().items():
        file = PAGES / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            old.append(name)
            if "--check" not in sys.argv:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and old:
        print(f"out of date: {', '.join(old)}; `make reference` makes them anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
