"""The plan of a comparison: its tasks, arms, order and versions, written before anything runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.live import agents, local
from gateway.features.prices.price_list import LIST_NAME
from gateway.text.secrets import find_secrets
from gateway.upstream.litellm_package import litellm_folders
from gateway.upstream.model_costs import capabilities

MODES = ("off", "shadow", "on")
LEAST_K = 3
_TASKS = Path(__file__).with_name("tasks.json")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_SECRET_LENGTH = 12


class Refused(Exception):
    """A demand that the kit refuses; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attempt of the agent at a task in an arm. `id`: the name of its job folder."""

    id: str
    arm: str
    task: str
    ref: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The content of `plan.json`; everything else in the folder follows from it."""

    model: str
    agent: str
    harness: tuple[str, ...]
    options: tuple[str, ...]
    """Words for the harness behind those of the kit."""

    dataset: dict[str, str]
    arms: tuple[str, ...]
    k: int
    seed: int
    dry: bool
    upstream: str
    trials: tuple[Trial, ...]

    @property
    def inside(self) -> bool:
        """Whether the harness is that of the kit, whose tasks are toys."""
        return self.harness[-1] == local.__name__

    @property
    def claims(self) -> bool:
        """Whether conclusions may be drawn."""
        return not self.dry and not self.inside and self.k >= LEAST_K

    def write(self, folder: Path) -> None:
        """Write `plan.json`."""
        _write_new(folder / "plan.json", json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Raises: Refused when there is no plan in the folder."""
        try:
            values = json.loads((folder / "plan.json").read_text())
        except FileNotFoundError as error:
            raise Refused(f"{folder} holds no plan.json") from error
        values["trials"] = tuple(Trial(**trial) for trial in values["trials"])
        return cls(**values | {key: tuple(values[key]) for key in ("arms", "harness", "options")})


def chosen_tasks(inside: bool, names: Sequence[str]) -> dict[str, Any]:
    """The list of tasks; only those with `names`, when there are any."""
    listed: dict[str, Any] = json.loads((local.TINY if inside else _TASKS).read_text())
    if names:
        known = {task["name"].rpartition("/")[2]: task for task in listed["tasks"]}
        if unknown := [name for name in names if name not in known]:
            raise Refused(f"not in the list of tasks: {', '.join(unknown)}")
        listed["tasks"] = [known[name] for name in names]
        listed["rule"] = f"chosen by hand from: {listed['rule']}"
    return listed


def ordered(
    tasks: Sequence[dict[str, Any]], arms: Sequence[str], k: int, seed: int
) -> tuple[Trial, ...]:
    """Every attempt of every task, all arms of one behind each other, in an order by chance: what
    changes at the provider with time changes for all arms."""
    draw, trials = random.Random(seed), list[Trial]()
    for attempt in range(1, k + 1):
        for task in draw.sample(list(tasks), len(tasks)):
            for arm in draw.sample(list(arms), len(arms)):
                short = task["name"].rpartition("/")[2]
                name = f"{len(trials) + 1:04d}-{short}-{arm}-{attempt}"
                trials.append(
                    Trial(id=name, arm=arm, task=task["name"], ref=task["ref"], attempt=attempt)
                )
    return tuple(trials)


def arm_configs(arms: Sequence[str], base: Path | None, api_base: str) -> dict[str, dict[str, Any]]:
    """Config by name of each arm: `off`, `shadow`, `on`, or `NAME=FILE` with a config
    laid over that of `base`. Its store lies beside the config."""
    found: dict[str, dict[str, Any]] = {}
    for spec in arms:
        name, _, file = spec.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in found:
            raise Refused(f"each arm needs another name, of small letters and digits: {spec}")
        if not file and name not in MODES:
            raise Refused(f"{name} is no mode ({', '.join(MODES)}): write {name}=FILE.yaml")
        config: dict[str, Any] = {"default_upstream": {"api_base": api_base}}
        for path in filter(None, (base, Path(file) if file else None)):
            _merge(config, _read_config(path))
        if name in MODES:
            _merge(config, {"steering": {"mode": name}})
        found[name] = config
    if len(found) < 2:
        raise Refused("a comparison needs two arms: --arms off,on")
    return found


def _read_config(path: Path) -> dict[str, Any]:
    text = path.read_text()
    if find_secrets(text):
        raise Refused(f"{path} holds a key; it would be kept in the folder. Name a variable")
    values = yaml.safe_load(text) or {}
    if not isinstance(values, dict):
        raise Refused(f"{path} is no config")
    return values


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def write_arms(folder: Path, configs: dict[str, dict[str, Any]]) -> None:
    """One folder per arm, with its config."""
    for name, config in configs.items():
        home = folder / "arms" / name
        home.mkdir(parents=True)
        whole = {**config, "storage": {**config.get("storage", {}), "path": "gateway.db"}}
        _write_new(home / "config.yaml", yaml.safe_dump(whole, sort_keys=False))


def write_prices(folder: Path, model: str) -> None:
    """The price list that the gateway uses: its origin, its digest and its entry of the model."""
    paths = [path / LIST_NAME for path in litellm_folders()]
    path = next(filter(Path.is_file, paths), None)
    info = capabilities(model) or capabilities(model.partition("/")[2])
    listed = {
        "list": f"LiteLLM {_installed('litellm')}: {LIST_NAME}",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest() if path else None,
        "model": model,
        "usd_per_token": dict(info.rates) if info else None,
    }
    _write_new(folder / "prices.json", json.dumps(listed, indent=1))


def versions(plan: Plan) -> dict[str, str]:
    """Versions of all parts of a run. The agent's version is in the harness's results."""
    return {
        "gateway": _installed("steering-gateway"),
        "harness": local.VERSION if plan.inside else _says([*plan.harness, "--version"]),
        "agent on this machine": agents.version(plan.agent) if plan.inside else "in the container",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "dataset": f"{plan.dataset['dataset']} {plan.dataset['version']}",
    }


def secrets() -> list[bytes]:
    """The values of this environment's variables that are named like keys."""
    named = (v for n, v in os.environ.items() if _SECRET_NAME.search(n))
    return [value.encode() for value in named if len(value) >= _SECRET_LENGTH]


def mask(folder: Path, values: Sequence[bytes]) -> int:
    """Replace the keys in all files by as many asterisks, so that a database stays whole; the
    number of files that held one."""
    masked = 0
    for path in folder.rglob("*") if values else ():
        if path.is_symlink() or not path.is_file():
            continue
        text = data = path.read_bytes()
        for value in values:
            data = data.replace(value, b"*" * len(value))
        if data != text:
            path.write_bytes(data)
            masked += 1
    return masked


def _says(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Refused(f"{command[0]} is not installed: uv tool install harbor") from error
    return done.stdout.strip() or "unknown"


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _write_new(path: Path, text: str) -> None:
    with path.open("x") as file:
        file.write(text)
