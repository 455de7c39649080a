"""Plain YAML values -> typed, frozen settings; every refusal names its key path, all at once.

Works on any dataclass: the field's type defines what is accepted, and `__post_init__` may refuse
more with `ValueError("<field>: <reason>")`."""

import dataclasses
import re
import types
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from math import isfinite, nan
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gateway.config.values import Faults, Secret
from gateway.errors import ConfigError
from gateway.values import T

_KINDS = {dict: "the mapping", list: "the list", int: "the number", float: "the number"}
_KINDS |= {str: "the text", Secret: "the text"}
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


def build(cls: type[T], value: Any, path: str = "") -> T:
    """`value` (a mapping, or None for all defaults) as an instance of dataclass `cls`. Raises
    ConfigError: all unknown keys (with the nearest valid name), wrong types and refused values."""
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path or 'config'}: expected a mapping, got {_kind(value)}")
    hints = _hints(cls)  # type: ignore[arg-type]
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    faults = Faults()
    kwargs = {}
    for key, each in value.items():
        if key not in fields:
            near = get_close_matches(str(key), fields, n=1, cutoff=0.7)
            inner = [name for name in fields if key in getattr(hints[name], "__annotations__", ())]
            if len(inner) == 1:
                hint = f"it stands in {inner[0]!r}"
            elif near:
                hint = f"did you mean {near[0]!r}?"
            else:
                hint = f"known: {', '.join(sorted(fields))}"
            faults.found.append(f"{join(path, str(key))}: unknown key; {hint}")
            continue
        with faults.collected():
            kwargs[key] = convert(hints[key], each, join(path, key))
    required = [
        f.name for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in value:
            faults.add(f"{join(path, name)}: required")
    # A refused value is left out, and the others are tried again, until nothing is refused.
    while kwargs.keys() >= set(required):
        try:
            made = cls(**kwargs)
        except ConfigError as exc:
            faults.found.extend(exc.faults)
            break
        except ValueError as exc:
            faults.add(join(path, str(exc)))
            name = re.split(r"\W", str(exc), maxsplit=1)[0]
            if name not in kwargs:  # of a value that was left out, or of no single one
                break
            del kwargs[name]
        else:
            faults.raise_any()
            return made
    raise ConfigError(*faults.found)


def convert(hint: Any, value: Any, path: str) -> Any:
    """`value` as the type `hint`; text is accepted for numbers and booleans (environment)."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(hint, value, path)
    if origin is Literal:
        return _convert_literal(hint, value, path)
    if origin is tuple:
        return _convert_sequence(hint, value, path)
    if origin is Mapping:
        return _convert_mapping(hint, value, path)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, path)
    return _convert_scalar(hint, value, path)


def join(path: str, key: str) -> str:
    """The key path with one more key."""
    if path:
        return f"{path}.{key}"
    return key


# Kept, because evaluating annotations takes milliseconds.
_hints = cache(get_type_hints)


def _convert_union(hint: Any, value: Any, path: str) -> Any:
    options = [a for a in get_args(hint) if a is not type(None)]
    if value is None:
        if len(options) < len(get_args(hint)):
            return None
        raise ConfigError(f"{path}: may not be null")
    for option in options[:-1]:
        with suppress(ConfigError):
            return convert(option, value, path)
    return convert(options[-1], value, path)


def _convert_literal(hint: Any, value: Any, path: str) -> Any:
    allowed = get_args(hint)
    # YAML 1.1 reads a bare on/off as a boolean; where only words are allowed, the word was meant.
    if isinstance(value, bool):
        value = "on" if value else "off"
    if isinstance(value, str):  # variables are text, also where a number is meant
        value = next((each for each in allowed if str(each) == value), value)
    if value not in allowed:
        words = [str(each) for each in allowed]
        near = get_close_matches(str(value), words, n=1)
        meant = ""
        if near:
            meant = f"; did you mean {near[0]!r}?"
        raise ConfigError(f"{path}: {value!r} is not one of {', '.join(words)}{meant}")
    return value


def _convert_sequence(hint: Any, value: Any, path: str) -> Any:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise ConfigError(f"{path}: expected a list, got {_kind(value)}")
    item = get_args(hint)[0]
    faults = Faults()
    items = []
    for i, each in enumerate(value):
        with faults.collected():
            items.append(convert(item, each, f"{path}[{i}]"))
    faults.raise_any()
    return tuple(items)


def _convert_mapping(hint: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a mapping, got {_kind(value)}")
    args = get_args(hint)
    faults = Faults()
    out = {}
    for k, v in value.items():
        if isinstance(k, bool) and args[0] is str:
            k = "on" if k else "off"  # as with values: YAML 1.1 reads on and off as booleans
        with faults.collected():
            key = convert(args[0], k, join(path, str(k)))
            out[key] = convert(args[1], v, join(path, str(k)))
    faults.raise_any()
    return out


def _convert_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is bool:
        text = str(value).lower()
        if isinstance(value, bool) or (isinstance(value, str) and text in _TRUE | _FALSE):
            return text in _TRUE
    elif isinstance(hint, type) and issubclass(hint, str):
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            if isinstance(value, hint):
                return value
            return hint(value)
    elif hint in (int, float) and not isinstance(value, bool):
        try:
            number = hint(value)
        except (TypeError, ValueError, OverflowError):
            number = nan
        if isfinite(number) and not (hint is int and isinstance(value, float) and value % 1):
            return number
    name = {bool: "true or false", int: "a whole number", float: "a number"}.get(hint, "text")
    raise ConfigError(f"{path}: expected {name}, got {_kind(value)}")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    shown = repr(value)
    name = _KINDS.get(type(value), "the value")
    return f"{name} {shown if len(shown) <= 60 else shown[:57] + '...'}"
