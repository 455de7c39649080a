"""The gateway as its users start it: a process, its signals, and every line it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gateway
from steering_gateway_testing.patience import ANSWER_S, DEADLINE_MS, run_to_end

ROOT = Path(gateway.__file__).parents[1]
"""The checkout, or the folder of packages in which the gateway is installed."""

START_S = 180.0
TRUSTS_NOBODY = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""For processes that speak HTTP to loopback: aiohttp reads the certificate authorities twice while
it is imported, which takes a tenth of the start."""


class GatewayProcess:
    """`gateway serve` on a free port, between `with` and its end; log lines are collected.

    config: text of the config file; env: further variables; program: the command to start, by
    default the checkout's.
    """

    def __init__(
        self,
        directory: Path,
        config: str = "",
        *,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "gateway"),
    ) -> None:
        self.config = directory / "gateway.yaml"
        self.config.write_text(config or "{}")
        found = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        self.env = {**found, **TRUSTS_NOBODY, **(env or {})}
        self.env.setdefault("GATEWAY_STEERING__MODE", "off")
        self.env.setdefault("GATEWAY_STEERING__DEADLINE_MS", str(DEADLINE_MS))
        self.env.setdefault("GATEWAY_ETRACES__ENABLED", "false")
        self._directory = directory
        self._program = program
        self.lines: list[str] = []
        self._news = threading.Condition()

    def __enter__(self) -> GatewayProcess:
        self.start()
        try:
            self.url = str(self.wait_for("listening")["url"]).removesuffix("/v1")
        except BaseException:
            self.process.kill()
            raise
        return self

    def start(self) -> None:
        """Start the process without waiting for it."""
        self.process = subprocess.Popen(
            [*self._program, "serve", "--port", "0", "--config", str(self.config)],
            cwd=self._directory,
            env=self.env,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.end()
        finally:
            self.process.kill()
            self.close()

    def close(self) -> None:
        """Give up the pipe of a process that has ended."""
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def base_url(self) -> str:
        """Where clients point."""
        return f"{self.url}/v1"

    def end(self, timeout_s: float = ANSWER_S) -> int:
        """Wait for the process; its exit status."""
        status = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return status

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event; a line that is no JSON object is an error."""
        found = [json.loads(line) for line in self.lines]
        return [line for line in found if line["event"] == name]

    def wait_for(self, name: str, count: int = 1) -> dict[str, Any]:
        """The `count`th log line of an event. Raises: AssertionError when it does not come."""
        with self._news:
            self._news.wait_for(
                lambda: len(self.events(name)) >= count or self.process.poll() is not None, START_S
            )
        found = self.events(name)
        assert len(found) >= count, f"no {name!r} in {self.lines}"
        return found[count - 1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def environment_of_a_new_user(home: Path, base_url: str) -> dict[str, str]:
    """The variables of somebody with an empty home, whose provider is at `base_url`."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "PYTHONPATH": str(ROOT),
        **TRUSTS_NOBODY,
        "OPENAI_BASE_URL": base_url,
        "GATEWAY_STEERING__DEADLINE_MS": str(DEADLINE_MS),
    }


def run(
    *arguments: str, directory: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One command of the gateway, to its end."""
    command = [sys.executable, "-m", "gateway", *arguments]
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **TRUSTS_NOBODY}
    return run_to_end(command, {**known, **(env or {})}, directory, START_S)
