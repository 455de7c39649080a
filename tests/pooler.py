"""A real pooler before the tests' PostgreSQL server: pgbouncer, which lends a connection of the
server for one transaction."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from steering_gateway_testing.postgres import new_folder
from tests.postgres import shared_server

_PORT = 6432
_START_S = 120.0


def through_pooler(url: str) -> str:
    """The URL of the same database through the pooler. Skips where there is none."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    parts = urlsplit(url)
    return f"postgresql://postgres@{parts.path}?host={_started(program)}&port={_PORT}"


@cache
def _started(program: str) -> Path:
    """The folder of the pooler's socket."""
    server, folder = shared_server(), new_folder()
    (users := folder / "users.txt").write_text('"postgres" ""\n')
    (config := folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={server.folder} port={server.port}\n[pgbouncer]\n"
        f"listen_addr =\nlisten_port = {_PORT}\nunix_socket_dir = {folder}\nauth_type = trust\n"
        f"auth_file = {users}\npool_mode = transaction\nmax_client_conn = 200\n"
        f"default_pool_size = 4\nlogfile = {folder}/log\npidfile = {folder}/pid\n"
    )
    user = pwd.getpwnam("pgserver").pw_uid if os.geteuid() == 0 else None
    process = subprocess.Popen([program, "-q", str(config)], user=user, group=user)
    atexit.register(process.kill)
    until = time.monotonic() + _START_S
    while not (folder / f".s.PGSQL.{_PORT}").exists():
        if process.poll() is not None or time.monotonic() > until:
            raise OSError((folder / "log").read_text()[-500:])
        time.sleep(0.05)
    return folder
