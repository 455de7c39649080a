"""Server processes of the bench: started, watched through /proc, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.client import LOOPBACK

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_POLL_S = 0.004


class NotReady(RuntimeError):
    """A server that ended, or did not answer in time; the message holds its last words."""


class Server:
    """One process (with its children) that listens on a port of its own."""

    def __init__(
        self, command: Sequence[str], *, port: int, log: Path, env: Mapping[str, str]
    ) -> None:
        self.port = port
        self._log = log
        self.started = time.perf_counter()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                env=dict(env),
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def wait_ready(self, path: str, limit_s: float) -> float:
        """Seconds from the start to the first 200 on `path`.

        Raises:
            NotReady: it ended before, or the limit passed.
        """
        while time.perf_counter() - self.started < limit_s:
            if self._process.poll() is not None:
                raise NotReady(
                    f"ended with status {self._process.returncode}: {self._last_words()}"
                )
            if _answers(self.port, path):
                return time.perf_counter() - self.started
            time.sleep(_POLL_S)
        raise NotReady(f"not ready after {limit_s:g} s: {self._last_words()}")

    def cpu_s(self) -> float:
        """CPU seconds used so far, of all threads and children, at nanosecond resolution."""
        return cpu_of(self._process.pid)

    def rss_mb(self) -> float:
        """Resident memory now, children included, in MiB."""
        return sum(_rss_kb(pid) for pid in tree(self._process.pid)) / 1024

    def stop(self) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _last_words(self) -> str:
        text = self._log.read_text(errors="replace").strip()
        return text[-400:] or "it said nothing"


def cpu_of(pid: int) -> float:
    """CPU seconds that a process and its children have used so far, of all threads."""
    return sum(_clock_s(each) for each in tree(pid)) + _reaped_children_s(pid)


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def clean_env() -> dict[str, str]:
    """This environment without what would configure a gateway or a provider behind our back."""
    prefixes = ("OPENAI_", "ANTHROPIC_", "GATEWAY_", "LITELLM_", "PORTKEY_", "AZURE_")
    # Nor without what makes Python compile every module again at each start.
    left_out = {"PYTHONDONTWRITEBYTECODE"}
    env = {k: v for k, v in os.environ.items() if k not in left_out and not k.startswith(prefixes)}
    return {k: v for k, v in env.items() if not k.lower().endswith("_proxy")}


def tree(pid: int) -> list[int]:
    """A process, its children, and theirs."""
    found, at = [pid], 0
    while at < len(found):
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{found[at]}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        at += 1
    return found


def _answers(port: int, path: str) -> bool:
    request = f"GET {path} HTTP/1.1\r\nhost: {LOOPBACK}\r\nconnection: close\r\n\r\n"
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as sock:
            sock.sendall(request.encode())
            return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _clock_s(pid: int) -> float:
    # Linux: the clock id of another process's CPU time, as clock_getcpuclockid(3) makes it.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def _reaped_children_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) * _TICK_S  # cutime, cstime: proc(5)
    return 0.0


def _rss_kb(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0
