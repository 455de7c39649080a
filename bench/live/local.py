"""A harness for a folder instead of a container: Harbor's options, and Harbor's result files.

It runs the tasks of `tiny.json` only. Where it differs from Harbor: no container, no other user,
the agent's programs are those of the machine. So it is for agents that are trusted with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.live import agents

SEED = "GATEWAY_LIVE_SEED"
VERSION = "local 1"
TINY = Path(__file__).with_name("tiny.json")


def tiny_tasks() -> list[dict[str, Any]]:
    """The tasks for a folder, with what the scripted provider does in them."""
    tasks: list[dict[str, Any]] = json.loads(TINY.read_text())["tasks"]
    return tasks


def marker(name: str) -> str:
    """The beginning of a task's text, by which the scripted provider knows it."""
    return f"Task {name}:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task once and write its job folder."""
    options = _parser().parse_args(arguments)
    name, _, ref = options.task.partition("@")
    task = next((t for t in tiny_tasks() if t["name"] == name), None)
    if task is None or ref not in ("", task["ref"]):
        print(f"no such task: {options.task}", file=sys.stderr)
        return 2
    job = options.jobs_dir / options.job_name
    trial = job / f"{name.rpartition('/')[2]}__1"
    for folder in (trial / "agent", trial / "verifier"):
        folder.mkdir(parents=True)
    config = _config(options, name, task["ref"])
    _write(job / "config.json", config)
    _write(trial / "config.json", config["trial"])
    result = _trial(options, task, trial, config["trial"])
    _write(trial / "result.json", result)
    _write(job / "result.json", {"id": str(uuid.uuid4()), "n_total_trials": 1})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.live.local")
    parser.add_argument("command", choices=["run"])
    parser.add_argument("-t", "--task", required=True)
    parser.add_argument("-a", "--agent", required=True, choices=agents.LOCAL)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key-name", required=True)
    parser.add_argument("-o", "--jobs-dir", type=Path, required=True)
    parser.add_argument("--job-name", required=True)
    parser.add_argument("-k", "--n-attempts", type=int, choices=[1], default=1)
    parser.add_argument("-n", "--n-concurrent", type=int, choices=[1], default=1)
    parser.add_argument("-y", "--yes", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    return parser


def _config(options: argparse.Namespace, name: str, ref: str) -> dict[str, Any]:
    agent = {
        "name": options.agent,
        "model_name": options.model,
        "base_url": options.base_url,
        "model_api_key_name": options.api_key_name,
    }
    task = {"name": name, "ref": ref}
    trial = {"task": task, "trial_name": options.job_name, "agent": agent}
    return {"job_name": options.job_name, "agents": [agent], "tasks": [task], "trial": trial}


def _trial(
    options: argparse.Namespace, task: dict[str, Any], trial: Path, config: dict[str, Any]
) -> dict[str, Any]:
    started = _now()
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        work.mkdir()
        for name, text in {**task.get("files", {}), "drawn.txt": _drawn(options)}.items():
            (work / name).write_text(text)
        place = agents.Place(
            model=options.model.partition("/")[2] or options.model,
            url=options.base_url,
            key_name=options.api_key_name,
            key=os.environ.get(options.api_key_name, ""),
            home=home,
            work=work,
            logs=trial / "agent",
        )
        text = f"{marker(task['name'])} {task['text']}"
        wrong = agents.run(options.agent, text, place)
        worked = _now()
        check = subprocess.run(["/bin/sh", "-c", task["check"]], cwd=work, check=False)
    reward = int(check.returncode == 0)
    (trial / "verifier" / "reward.txt").write_text(str(reward))
    provider_name, _, model = options.model.rpartition("/")
    return {
        "id": str(uuid.uuid4()),
        "task_name": task["name"],
        "trial_name": options.job_name,
        "trial_uri": trial.resolve().as_uri(),
        "task_id": {"org": "tiny", "name": task["name"].partition("/")[2], "ref": task["ref"]},
        "task_checksum": task["ref"].partition(":")[2],
        "config": config,
        "agent_info": {
            "name": options.agent,
            "version": agents.version(options.agent),
            "model_info": {"name": model, "provider": provider_name or None},
        },
        "agent_result": {},
        "verifier_result": {"rewards": {"reward": reward}},
        "exception_info": _exception(wrong, worked),
        "started_at": started,
        "finished_at": _now(),
        "agent_execution": {"started_at": started, "finished_at": worked},
    }


def _exception(wrong: str | None, at: str) -> dict[str, str] | None:
    if wrong is None:
        return None
    texts = {"exception_message": wrong, "exception_traceback": ""}
    return {"exception_type": wrong, "occurred_at": at, **texts}


def _drawn(options: argparse.Namespace) -> str:
    """A word that differs from run to run, the same for a seed and a run's name."""
    text = f"{os.environ.get(SEED, '0')} {options.job_name}"
    return "even" if hashlib.sha256(text.encode()).digest()[0] % 2 == 0 else "odd"


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    sys.exit(main())
