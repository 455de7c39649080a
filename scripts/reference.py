"""Make the reference from the code: the pages of docs/reference on the configuration, the commands
and the API, and a JSON Schema of the configuration for editors.

    python -m scripts.reference            # `make reference` writes the files
    python -m scripts.reference --check    # says which of them are out of date

`tests/docs/test_reference.py` fails while a page is out of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.api.routes import openapi, operations
from gateway.cli import build_parser, tree
from gateway.config import Deployment, Settings
from gateway.config.keys_and_types import build
from gateway.config.litellm import CLOSING_SECTIONS, ENTRY_KEYS, LITELLM_SECTIONS, OTHER_SECTIONS
from gateway.core.monitors.table import MONITORS
from gateway.core.routing import ROUTED_STATES
from gateway.errors import ConfigError
from gateway.features.budgets.settings import SCOPES
from gateway.steering.experiments import MODES

ROOT = Path(__file__).resolve().parents[1]
PAGES = "docs/reference"
SCHEMA = "config.schema.json"
MADE = "<!-- Made by `make reference`; do not edit. -->\n"

_KEY = re.compile(r"( *)([\w\"]+):(?: (.*?))?(?: +# (.*))?$")


def pages() -> dict[str, str]:
    """The text of each file, by its path in the repository."""
    schema = config_schema()
    return {
        f"{PAGES}/configuration.md": MADE + "\n".join(configuration()) + "\n",
        f"{PAGES}/cli.md": MADE + "\n".join(commands()) + "\n",
        f"{PAGES}/api.md": MADE + "\n".join(api()) + "\n",
        f"{PAGES}/{SCHEMA}": json.dumps(schema, indent=1) + "\n",
        f"gateway/config/{SCHEMA}": json.dumps(schema, separators=(",", ":")) + "\n",
    }


def configuration() -> Iterator[str]:
    """Every key of config.yaml, which a test keeps equal to the settings, with its default."""
    yield "# Configuration\n"
    yield (
        "Every key, its default and its meaning. No file is needed; `gateway serve` reads "
        "`./config.yaml`, or the file that `--config` or `GATEWAY_CONFIG` names, and "
        "`gateway check-config` says what is wrong with it. Any key can be set by a variable: "
        "`GATEWAY_` and the keys joined by two underscores, so `GATEWAY_SERVER__PORT=9000` sets "
        "`server.port`; lists and maps are written as YAML or JSON.\n\n"
        f"[{SCHEMA}]({SCHEMA}) is a JSON Schema of the file; `gateway check-config --schema` "
        "prints it, too. An editor with a YAML language server completes and checks the keys of a "
        f"file that begins with `# yaml-language-server: $schema={SCHEMA}`, a path or a URL.\n"
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
        said = each["description"].removesuffix(".")
        said = f"{said[:1].upper()}{said[1:]}."
        yield f"| `{each['name']}` | {each['in']} | {kind} | {_cell(said)} |"


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
        yield "| key | type | meaning |\n| --- | --- | --- |"
        for key, value in properties.items():
            yield f"| `{key}` | {_type(value)} | {_cell(value.get('description', ''))} |"
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


# What a text in the place of a number or a switch may be: as a variable has it, or a reference.
_REFERENCE = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}|^os\.environ/."
_TEXT_FOR: Mapping[type, str] = {
    bool: "^(1|0|[Oo][Nn]|[Oo][Ff][Ff]|[Yy][Ee][Ss]|[Nn][Oo]"
    "|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$",
    int: r"^\s*[+-]?\d[\d_]*\s*$",
    float: r"^\s*[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d+)?\s*$",
}
_JSON_TYPE: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number"}
# Maps whose keys are names that the gateway knows.
_NAMES = {
    "model_routing": ROUTED_STATES,
    "model_routing_by_model.*": ROUTED_STATES,
    "monitors.weights": tuple(MONITORS),
    "monitors.profiles.*": tuple(MONITORS),
    "experiment.arms": tuple(MODES),
    "injection.cooldown_steps": ROUTED_STATES,
}
_MISPLACED = {  # a wrong indentation is enough for that
    f"^({'|'.join(CLOSING_SECTIONS)})$": {
        "not": {"type": ["object", "array"]},
        "description": "A section of its own, which begins at the left margin.",
    }
}
_PRICE = "^(input|output|cache)_.*cost"  # keys of prices
_SCOPES = "|".join(SCOPES)
_PATTERNS = {"budgets[].scope": f"^({_SCOPES}|tag:[a-z0-9][a-z0-9_-]{{0,39}})$|{_REFERENCE}"}
_OPEN = ("monitors.profile",)  # to which `monitors.profiles` adds
_FARTHEST = 1 << 36  # beyond every limit of a number
_NEAR = 1e-9  # of a limit


def config_schema() -> dict[str, Any]:
    """JSON Schema of config.yaml: names, types, defaults and limits are those of the settings."""
    said = dict(_meanings())
    schema = _object_of(Settings, "", said)
    keys = schema["properties"]
    theirs = {"type": ["object", "null", "array"], "maxItems": 0, "patternProperties": _MISPLACED}
    for name in LITELLM_SECTIONS:
        about = "Of the LiteLLM proxy: read where it has a meaning here."
        keys[name] = {"description": about, **theirs}
    moved = {
        "num_retries": keys["router"]["properties"]["num_retries"],
        "allowed_fails": keys["router"]["properties"]["allowed_fails"],
        "cooldown_time": keys["router"]["properties"]["cooldown_s"],
        "fallbacks": keys["router"]["properties"]["fallbacks"],
        "timeout": keys["timeouts"]["properties"]["first_byte_s"],
        "request_timeout": keys["timeouts"]["properties"]["first_byte_s"],
    }
    for name in ("router_settings", "litellm_settings"):
        also = {key: _or_null(value) for key, value in moved.items()}
        keys[name] = {**keys[name], "properties": also}
    key = {"anyOf": [{"type": ["string", "number", "null"]}, {"enum": [False, [], {}]}]}
    keys["general_settings"] |= {"properties": {"master_key": key}}
    for name in sorted(OTHER_SECTIONS):
        about = "Of the LiteLLM proxy: not used here."
        keys[name] = {"description": about, "patternProperties": _MISPLACED}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "config.yaml of the steering gateway",
        **schema,
        "definitions": _definitions(),
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _meanings() -> Iterator[tuple[str, str]]:
    """(key path, its comment) of config.yaml; of an item of a list `section[].key`, from the
    example above the list; of a section, what stands above it."""
    parents, prose, inner = [""], list[str](), list[tuple[str, str]]()
    for line in (ROOT / "config.yaml").read_text(encoding="utf-8").splitlines():
        found = _KEY.match(line)
        if line.startswith("#"):
            item = _KEY.match(line[1:].replace("- ", "  ", 1).removeprefix("  "))
            if line.startswith("#  ") and item:
                inner.append((item[2], item[4] or ""))
            elif not line.startswith("#  "):
                prose.append(line[2:])
        elif found is None:
            prose, inner = [], []
        else:
            parents = [*parents[: len(found[1]) // 2 + 1], found[2].strip('"')]
            path = ".".join(parents[1:])
            yield path, found[4] or (" ".join(prose) if not found[1] else "")
            for name, meaning in inner:
                yield f"{path}[].{name}", meaning
                yield f"{path}.sinks[].{name}", meaning
            inner = []


def _object_of(cls: type, path: str, said: Mapping[str, str]) -> dict[str, Any]:
    """The schema of a section."""
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    properties = {}
    for field in fields:
        here = f"{path}.{field.name}".lstrip(".")
        hint = hints[field.name]
        schema = _schema_of(hint, here, said)
        if not required:
            schema |= _limits(cls, hint, field) | _words(cls, hint, field, here)
        if not dataclasses.is_dataclass(hint) and field.name not in required:
            schema["default"] = _plain(_default(field))
        if meaning := said.get(here):
            schema["description"] = meaning
        properties[field.name] = schema
    if cls is Deployment:
        _describe_deployment(properties)
    found: dict[str, Any] = {"type": "object" if required else ["object", "null"]}
    found |= {"additionalProperties": False, "properties": properties}
    return found | ({"required": required} if required else {})


def _describe_deployment(properties: dict[str, Any]) -> None:
    """What a deployment's own checks say, and LiteLLM's keys that may stand in it."""
    price = {_PRICE: _or_null({"minimum": 0, **_named("number")})}
    for name in ("litellm_params", "model_info"):
        properties[name]["patternProperties"] = _MISPLACED | price
    params = properties["litellm_params"]
    params["required"] = ["model"]
    params["properties"] = {"model": {"type": "string"}, "weight": {"type": "number"}}
    for name in sorted(ENTRY_KEYS):
        properties[name] = {"description": "Of the LiteLLM proxy: not honoured here."}


def _schema_of(hint: Any, path: str, said: Mapping[str, str]) -> dict[str, Any]:
    """The schema of a value of this type, as `gateway.config.keys_and_types.convert` accepts it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_schema_of(each, path, said) for each in args if each is not type(None)]
        empty = [{"type": "null"}] if type(None) in args else []
        return {"anyOf": [*options, *empty]}
    if origin is typing.Literal:
        switches = [{"on": True, "off": False}[a] for a in args if a in ("on", "off")]
        texts = [str(each) for each in args if not isinstance(each, str)]
        return {"anyOf": [{"enum": [*args, *switches, *texts]}, _named("reference")]}
    if origin in (tuple, list):
        least = {"minItems": 1} if path in _PATTERNS else {}
        return {"type": "array", "items": _schema_of(args[0], f"{path}[]", said), **least}
    if origin is Mapping:
        names = {"propertyNames": {"enum": list(_NAMES[path])}} if path in _NAMES else {}
        value = _schema_of(args[1], f"{path}.*", said)
        return {"type": "object", **names, "additionalProperties": value}
    if dataclasses.is_dataclass(hint):
        return _object_of(typing.cast(type, hint), path, said)
    if hint in _JSON_TYPE:
        return _named(_JSON_TYPE[hint])
    if pattern := _PATTERNS.get(path.removesuffix("[]")):
        return {"type": "string", "pattern": pattern}
    if isinstance(hint, type) and issubclass(hint, str):
        return {"type": ["string", "number"]}
    return {}


def _named(definition: str) -> dict[str, Any]:
    """A reference to a definition; `allOf`, because what stands beside `$ref` is not read."""
    return {"allOf": [{"$ref": f"#/definitions/{definition}"}]}


def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = {"reference": {"type": "string", "pattern": _REFERENCE}}
    for kind, name in _JSON_TYPE.items():
        text = {"type": "string", "pattern": f"{_TEXT_FOR[kind]}|{_REFERENCE}"}
        found[name] = {"anyOf": [{"type": name}, text]}
    return found


def _limits(cls: type, hint: Any, field: Any) -> dict[str, Any]:
    """The smallest and the largest number that the settings accept, found by trying: so there is no
    second list of them. A limit that depends on another key is none."""
    number = next((t for t in (int, float) if t in (hint, *typing.get_args(hint))), None)
    if number is None or typing.get_origin(hint) in (tuple, list, Mapping):
        return {}
    others = {f.name for f in dataclasses.fields(cls)} - {field.name}

    def refusal(value: float) -> str | None:
        try:
            build(cls, {field.name: value})
        except ConfigError as exc:
            return str(exc)
        return None

    found: dict[str, Any] = {}
    for word, end in (("inimum", -_FARTHEST), ("aximum", _FARTHEST)):
        inside: Any = _default(field)
        outside: Any = end
        inside = 1 if inside is None else inside
        said = refusal(outside)
        while said is not None:
            middle = (inside + outside) // 2 if number is int else (inside + outside) / 2
            if middle in (inside, outside) or abs(outside - inside) < _NEAR:
                break
            refused = refusal(middle)
            inside, outside = (middle, outside) if refused is None else (inside, middle)
            said = refused or said
        bound = next(
            (n for n in (round(inside), round(inside, 6)) if abs(n - inside) < 2 * _NEAR), 0
        )
        if said is not None and others.isdisjoint(re.findall(r"\w+", said)):
            included = refusal(bound) is None
            found[f"m{word}" if included else f"exclusiveM{word}"] = bound
    return found


def _words(cls: type, hint: Any, field: Any, path: str) -> dict[str, Any]:
    """The words that a text may be, as its refusal names them; of an open list, none."""
    if hint is not str or path in _OPEN:
        return {}
    try:
        build(cls, {field.name: "?"})
    except ConfigError as exc:
        listed = re.search(r" one of ([\w, ]+)(, not .*)?$", str(exc))
        names = listed[1].split(", ") if listed else []
        return {"anyOf": [{"enum": names}, _named("reference")]} if names else {}
    return {}


def _default(field: Any) -> Any:
    made = field.default_factory is not dataclasses.MISSING
    return field.default_factory() if made else field.default


def _plain(value: Any) -> Any:
    """A default as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
        return {name: _plain(each) for name, each in fields if each is not None}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, enum.Enum) else value


def main() -> int:
    """Write the files, or with `--check` compare them."""
    old = []
    for name, text in pages().items():
        file = ROOT / name
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
