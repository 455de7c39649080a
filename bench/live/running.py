"""The run: a gateway per arm, the harness trial by trial, and their output in the folder."""

from __future__ import annotations

import contextlib
import json
import os
import secrets as random_keys
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.client import LOOPBACK
from bench.live import local, plan, provider
from bench.live.plan import Plan, Refused, Trial
from bench.processes import Server, free_port
from steering_gateway_testing import ScriptedUpstream

READY_S = 90.0
_OVERLAY = "services:\n  main:\n    extra_hosts: ['host.docker.internal:host-gateway']\n"
"""Docker on Linux knows the name of its host only with this entry."""
_IN_CONTAINER = "host.docker.internal"
ON_HOST = ("terminus", "terminus-1", "terminus-2")
"""Agents whose calls of the model come from the harness, not from the container."""


class Run:
    """One call of `run`."""

    def __init__(self, folder: Path, made: Plan, key_name: str, say: Any = print) -> None:
        self._folder, self._plan, self._key_name = folder, made, key_name
        self._say = say
        self._outside = made.inside or made.agent in ON_HOST
        self._env = dict(os.environ) | {local.SEED: str(made.seed)}
        if made.dry:
            self._env.setdefault(key_name, f"sk-dry-{random_keys.token_hex(20)}")
        self._keys = [*plan.secrets(), self._env.get(key_name, "").encode()]
        self._keys = [key for key in self._keys if len(key) >= 8]
        if not self._keys:
            raise Refused(f"{key_name} is not set")

    def whole(self) -> None:
        """Run what is missing. Raises: Refused when the harness wrote no result."""
        missing = [t for t in self._plan.trials if not self._record(t).exists()]
        self._note(len(missing))
        try:
            with self._gateways() as servers:
                for number, trial in enumerate(missing, 1):
                    solved = self._trial(trial, servers[trial.arm].port)
                    self._say(f"{number}/{len(missing)} {trial.id}: {solved}")
            for arm in self._plan.arms:
                self._export(arm)
        finally:
            if masked := plan.mask(self._folder, self._keys):
                self._say(f"a key was masked in {masked} files")

    def _note(self, missing: int) -> None:
        """Append to `calls.jsonl`: a plan may be carried out in several calls."""
        (self._folder / "records").mkdir(exist_ok=True)
        call = {"at": time.time(), "missing": missing, "versions": plan.versions(self._plan)}
        with (self._folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps(call) + "\n")

    @contextlib.contextmanager
    def _gateways(self) -> Iterator[dict[str, Server]]:
        servers: dict[str, Server] = {}
        with contextlib.ExitStack() as stack:
            if self._plan.dry:
                port = int(self._plan.upstream.rsplit(":", 1)[1].partition("/")[0])
                stack.enter_context(ScriptedUpstream(provider.answer, port=port, record=0))
            for arm in self._plan.arms:
                servers[arm] = self._gateway(arm)
                stack.callback(servers[arm].stop)
            for server in servers.values():
                server.wait_ready("/readyz", READY_S)
            yield servers

    def _gateway(self, arm: str) -> Server:
        home, port = self._folder / "arms" / arm, free_port()
        command = [sys.executable, "-m", "gateway", "serve", "--config", "config.yaml"]
        command += ["--host", LOOPBACK if self._outside else "0.0.0.0"]  # noqa: S104 - it holds no key
        log = _free_name(home, "gateway-", ".log")
        return Server([*command, "--port", str(port)], port=port, log=log, env=self._own_env())

    def _own_env(self) -> dict[str, str]:
        """The gateway's: not the agent's key, which comes with each request."""
        names = {self._key_name, "OPENAI_BASE_URL"}
        kept = {k: v for k, v in os.environ.items() if k not in names}
        return {k: v for k, v in kept.items() if not k.startswith("GATEWAY_")}

    def _record(self, trial: Trial) -> Path:
        return self._folder / "records" / f"{trial.id}.json"

    def _trial(self, trial: Trial, port: int) -> str:
        jobs = self._folder / "trials"
        if (jobs / trial.id).exists():  # of a call that was interrupted
            (jobs / trial.id).rename(_free_name(jobs, f"{trial.id}.interrupted-", ""))
        command = self._command(trial, port)
        log = _free_name(self._folder / "records", f"{trial.id}-", ".log")
        started = time.time()
        with log.open("wb") as out:
            # A real agent may wait for an answer from the terminal.
            done = subprocess.run(
                command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                check=False,
            )
        ended = time.time()
        plan.mask(jobs / trial.id, self._keys)
        plan.mask(log.parent, self._keys)
        if len(found := list((jobs / trial.id).glob("*/result.json"))) != 1:
            last = log.read_text(errors="replace").strip()[-600:]
            raise Refused(f"the harness wrote no result for {trial.id}: {last}")
        record = {"started": started, "ended": ended, "status": done.returncode}
        self._record(trial).write_text(json.dumps({**record, "command": command}, indent=1))
        rewards = (json.loads(found[0].read_text()).get("verifier_result") or {}).get("rewards")
        return "no reward" if not rewards else "solved" if solved(rewards) else "not solved"

    def _command(self, trial: Trial, port: int) -> list[str]:
        host = LOOPBACK if self._outside else _IN_CONTAINER
        anthropic = self._plan.agent == "claude-code" or self._plan.model.startswith("anthropic/")
        url = f"http://{host}:{port}" + ("" if anthropic else "/v1")
        words = ["run", "-t", f"{trial.task}@{trial.ref}", "-a", self._plan.agent]
        words += ["-m", self._plan.model, "--base-url", url, "--api-key-name", self._key_name]
        words += ["-o", str(self._folder / "trials"), "--job-name", trial.id]
        words += ["-k", "1", "-n", "1", "-y", "-q"]
        if not self._outside:
            overlay = self._folder / "host.yaml"
            overlay.write_text(_OVERLAY)
            words += ["--extra-docker-compose", str(overlay)]
        return [*self._plan.harness, *words, *self._plan.options]

    def _export(self, arm: str) -> None:
        home = self._folder / "arms" / arm
        command = [sys.executable, "-m", "gateway", "runs", "export", "--config", "config.yaml"]
        with _free_name(home, "runs-", ".jsonl").open("wb") as out:
            subprocess.run(command, cwd=home, env=self._own_env(), stdout=out, check=True)


def solved(rewards: dict[str, float]) -> bool:
    """Whether every reward is whole: Terminal-Bench gives 0 or 1."""
    return all(value >= 1 for value in rewards.values())


def _free_name(folder: Path, start: str, end: str) -> Path:
    """The first of START1END, START2END ... that does not exist."""
    number = 1
    while (path := folder / f"{start}{number}{end}").exists():
        number += 1
    return path
