"""`gateway check-config`: everything that is wrong with the settings, at once."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.commands.migrate import connect
from gateway.commands.serve import config_file
from gateway.config import DEFAULT_FILE, Settings, ignored_keys, settings_from_dict
from gateway.config.faults import Faults, key_path
from gateway.config.litellm_form import written_as
from gateway.config.load import left_out
from gateway.config.yaml_file import ConfigFile, read_config_file
from gateway.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Declare the command."""
    check = commands.add_parser(
        "check-config", help="check the config, and report everything that is wrong"
    )
    check.add_argument("--config", type=Path, help=f"config file (default: ./{DEFAULT_FILE})")
    check.add_argument("--json", action="store_true", help="one JSON object on stdout")
    check.add_argument(
        "--connect", action="store_true", help="also connect to the database and check its schema"
    )
    check.set_defaults(run=_check_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """`faults` make the config unusable; `ignored` keys have no effect."""

    faults: list[str]
    ignored: list[str]
    warnings: list[str]


def _check_config(args: argparse.Namespace) -> int:
    path = config_file(args.config)
    found = _found(path, connects=args.connect)
    name = str(path) if path else "defaults"
    if args.json:
        _print(json.dumps(_as_json(path, found)))
        return 2 if found.faults else 0
    for key in found.ignored:
        _print(f"note: {key} is a setting of the LiteLLM proxy and has no effect here")
    for warning in found.warnings:
        _print(f"warning: {warning}")
    for fault in found.faults:
        _print(fault if fault.startswith(name) else f"{name}: {fault}")
    if len(found.faults) > 1:
        _print(f"{name}: {len(found.faults)} faults")
    if not found.faults:
        _print(f"{name}: ok")
    return 2 if found.faults else 0


def _as_json(path: Path | None, found: _Found) -> dict[str, Any]:
    problem = "; ".join(found.faults) or None
    report: dict[str, Any] = {"config": str(path) if path else None, "ok": problem is None}
    report |= {"problem": problem, "problems": found.faults}
    return report | {"ignored": found.ignored, "warnings": found.warnings}


def _found(path: Path | None, *, connects: bool) -> _Found:
    from gateway.commands.config_warnings import config_warnings
    from gateway.process.start_checks import check

    try:
        file = read_config_file(path) if path else ConfigFile(name="defaults")
    except ConfigError as exc:
        return _Found(faults=list(exc.faults), ignored=[], warnings=[])
    faults = Faults()
    settings, refused = _settings(file, faults)
    if settings is not None:
        with faults.collected():
            check(settings, refused)
    warnings: list[str] = []
    if settings is not None and not faults.found:
        warnings = list(config_warnings(settings, os.environ))
        if connects:
            with faults.collected():
                asyncio.run(connect(settings))
    told = [*file.repeated, *file.located(faults.found)]
    return _Found(faults=told, ignored=ignored_keys(file.values), warnings=warnings)


def _settings(file: ConfigFile, faults: Faults) -> tuple[Settings | None, set[str]]:
    """The settings without the sections that have faults, and the names of those sections."""
    try:
        return settings_from_dict(file.values, os.environ), set()
    except ConfigError as exc:
        faults.found.extend(exc.faults)
    paths = [path for fault in faults.found for path in written_as(key_path(fault))]
    refused = {re.split(r"[.\[]", path)[0] for path in paths}
    try:
        return settings_from_dict(*left_out(refused, file.values, os.environ)), refused
    except ConfigError:
        return None, refused


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
