"""A server under `valgrind --tool=callgrind`: instructions counted between two moments."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers import Unavailable
from bench.processes import Server

_START_LIMIT_S = 300.0
_IDLE_S = 4.0
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class Counted:
    """A server that is slow, and counts what it executes: in all threads, not in the kernel."""

    def __init__(
        self, command: Sequence[str], *, port: int, home: Path, env: Mapping[str, str]
    ) -> None:
        if not shutil.which("valgrind"):
            raise Unavailable("valgrind is not installed")
        home.mkdir(parents=True, exist_ok=True)
        self._out = home / "callgrind.out"
        # Nothing is counted, and the start is some times quicker, until `begin`.
        tool = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet")
        server = Server(
            [*tool, f"--callgrind-out-file={self._out}", *command],
            port=port,
            log=home / "server.log",
            env=env,
        )
        self.server = server
        self._dumps = 0

    def wait_ready(self, path: str) -> None:
        """Wait for the first 200 on `path`, then begin to count. Raises: NotReady."""
        try:
            self.server.wait_ready(path, _START_LIMIT_S)
            self._control("--instr=on")
        except BaseException:
            self.stop()
            raise

    def zero(self) -> None:
        """Count from here."""
        self._control("--zero")

    def total(self) -> int:
        """The instructions since `zero`; `profile` is the file with where they were executed."""
        self._control("--dump")
        self._dumps += 1
        return int(_TOTALS.findall(self.profile.read_text(errors="replace"))[-1])

    @property
    def profile(self) -> Path:
        """What the newest `total` counted, for callgrind_annotate."""
        return self._out.with_name(f"{self._out.name}.{self._dumps}")

    def idle_per_second(self) -> float:
        """Instructions a second without a request: timers fire while valgrind is slow."""
        self.zero()
        began = time.perf_counter()
        time.sleep(_IDLE_S)
        return self.total() / (time.perf_counter() - began)

    def stop(self) -> None:
        """End the server."""
        self.server.stop()

    def _control(self, what: str) -> None:
        subprocess.run(
            ["callgrind_control", what, str(self.server.pid)],
            check=True,
            capture_output=True,
            timeout=60,
        )
