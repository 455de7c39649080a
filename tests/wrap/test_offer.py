"""The offer to keep an agent's earlier sessions, at a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from steering_gateway_testing import ScriptedUpstream
from tests.history.test_keep import LS, ONE, TWO, a_session, log_of
from tests.wrap.test_wrap import WAIT_S, _until, command, environment, wrapped

pytestmark = pytest.mark.slow

QUESTION = "2 earlier sessions of claude-code are on this machine"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent with the name of Claude Code's, which ends at once with a status of its own; two
    sessions of it, and one of another agent, are in the home directory."""
    folder = tmp_path / ".claude" / "projects" / "site"
    folder.mkdir(parents=True)
    for number, id in enumerate((ONE, TWO)):
        path = log_of(a_session(id, ("Mend the fence", [LS] * (2 + number))), folder)
        os.utime(path, (1e9, 1e9 + number))
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\necho agent ran\nexit 7\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends: ours, and that of the command."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        os.close(end)


def _started(
    agent: Path, tmp_path: Path, upstream: ScriptedUpstream, end: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("--", str(agent)),
        cwd=tmp_path,
        env=environment(tmp_path, upstream),
        stdin=end,
        stdout=end,
        stderr=end,
    )


def test_a_no_is_remembered(
    agent: Path, tmp_path: Path, upstream: ScriptedUpstream, terminal: tuple[int, int]
) -> None:
    """Asked after the agent, in one line; the agent's status counts. After an answer never again,
    and without a terminal not at all."""
    ended = wrapped(tmp_path, upstream, "--", str(agent))
    assert (ended.returncode, QUESTION in ended.stderr) == (7, False)
    ours, theirs = terminal
    process = _started(agent, tmp_path, upstream, theirs)
    shown = _until(ours, "", "[y/N]")
    assert shown.index("agent ran") < shown.index(QUESTION)
    os.write(ours, b"\n")
    assert process.wait(WAIT_S) == 7
    process = _started(agent, tmp_path, upstream, theirs)
    again = _until(ours, "", "nothing was recorded")
    assert process.wait(WAIT_S) == 7
    assert QUESTION not in again
    assert not _imported(tmp_path, upstream)


def test_a_yes_keeps_them(
    agent: Path, tmp_path: Path, upstream: ScriptedUpstream, terminal: tuple[int, int]
) -> None:
    """In the database that later commands read; nobody is asked again."""
    ours, theirs = terminal
    process = _started(agent, tmp_path, upstream, theirs)
    _until(ours, "", "[y/N]")
    os.write(ours, b"y\n")
    _until(ours, "", "kept 2 sessions as past runs: gateway dashboard")
    assert process.wait(WAIT_S) == 7
    assert len(_imported(tmp_path, upstream)) == 2
    (tmp_path / ".local/state/steering-gateway/history-offers.json").unlink()
    process = _started(agent, tmp_path, upstream, theirs)
    again = _until(ours, "", "nothing was recorded")
    assert process.wait(WAIT_S) == 7
    assert QUESTION not in again


def _imported(tmp_path: Path, upstream: ScriptedUpstream) -> list[str]:
    shown = subprocess.run(
        [*command()[:-1], "runs", "list", "--mode", "imported", "--json"],
        cwd=tmp_path,
        env=environment(tmp_path, upstream),
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.splitlines()
