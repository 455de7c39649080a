"""Finding session logs: files and folders of any kind, and checkpoints in a git repository."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.features.history.find import Found, at_home, named
from gateway.features.history.log_places import LogFormat, formats
from gateway.features.history.session import Session

LOGS = Path(__file__).parent / "logs"
CLAUDE = LOGS / "claude_code" / "2.0.30" / "a433fdd7-4e95-4fd7-b3b5-8e8754adaef7.jsonl"
SHORT = {"parentUuid": None, "isSidechain": False, "type": "user", "uuid": "u", "sessionId": "s"}
LINE = json.dumps({**SHORT, "message": {"role": "user", "content": "Repair it."}}) + "\n"


def sessions(found: list[Found]) -> list[Session]:
    return [each for file in found if file.format for each in file.sessions(file.open())]


def problem(path: Path) -> str:
    """The one line that is said of a path without a log."""
    (found,) = named([path])
    assert found.format is None
    assert "\n" not in found.problem
    return found.problem.removeprefix(f"{path}: ").partition(" of ")[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x00\xff\xfe" * 90_000, "not a session log"),
        (b"[" * 90_000, "not a session log"),
        (b'{"a": 1}\n', "not a session log"),
        (b"hello\n" * 20_000, "not a session log"),
    ],
    ids=["empty", "blank", "binary", "deep", "foreign", "text"],
)
@pytest.mark.parametrize("name", ["log.jsonl", "log.json", "log.md"])
def test_a_file_without_a_session_has_one_line(
    tmp_path: Path, content: bytes, said: str, name: str
) -> None:
    """Empty, foreign, binary and deeply nested, under the names of all kinds of logs."""
    path = tmp_path / name
    path.write_bytes(content)
    assert problem(path) == said


def test_files_that_cannot_be_read_have_one_line(tmp_path: Path) -> None:
    """No gzip under its name, gzip that breaks off, a pipe, and a file whose reading fails."""
    fake, cut, pipe = (tmp_path / name for name in ("a.jsonl.gz", "b.jsonl.gz", "pipe.jsonl"))
    fake.write_text("{}")
    cut.write_bytes(gzip.compress(LINE.encode())[:-9])
    os.mkfifo(pipe)
    for path in (fake, cut, Path("/proc/self/mem")):
        if path.exists():
            said = problem(path)
            assert said.startswith("cannot be read: ")
            assert "Errno" not in said
    assert problem(pipe) == "neither a file nor a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_has_one_line(tmp_path: Path) -> None:
    """A file and a folder without the permission."""
    path, folder = tmp_path / "a.jsonl", tmp_path / "folder"
    path.write_text(LINE)
    folder.mkdir()
    for each in (path, folder):
        each.chmod(0)
        assert problem(each).startswith("cannot be read: ")
    folder.chmod(0o700)


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A link that leads nowhere, or in a circle, and a name that no file can have, too."""
    loop, nowhere = tmp_path / "loop", tmp_path / "nowhere"
    loop.symlink_to(loop)
    nowhere.symlink_to(tmp_path / "gone")
    for path in (tmp_path / "missing.jsonl", loop, nowhere, tmp_path / ("x" * 300)):
        with pytest.raises(ConfigError, match=f"^{path}: [^\n]*$"):
            named([path])


def test_a_folder_is_searched_without_its_links(tmp_path: Path) -> None:
    """Also when folders are called like files, and a link leads back to the top."""
    inside = tmp_path / "session.jsonl" / "deeper"
    inside.mkdir(parents=True)
    (inside / "up").symlink_to(tmp_path)
    (inside / "a.jsonl").write_text(LINE)
    (inside / "notes.jsonl").write_text("{}")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "b.jsonl").write_text(LINE)
    found = named([tmp_path])
    assert [each.path for each in found] == [inside / "a.jsonl"]
    assert [each.id for each in sessions(found)] == ["s"]


def test_a_folder_without_logs_has_one_line(tmp_path: Path) -> None:
    """Also beside others that have some."""
    (tmp_path / "notes.txt").write_text("hello")
    assert problem(tmp_path) == "no session log"
    assert [bool(each.problem) for each in named([CLAUDE, tmp_path])] == [False, True]


def test_sessions_at_home_are_found_newest_first(tmp_path: Path) -> None:
    """A link to a session that has gone is left out."""
    folder = tmp_path / ".claude" / "projects" / "p"
    folder.mkdir(parents=True)
    for number, name in enumerate(("old", "new")):
        (folder / f"{name}.jsonl").write_text(LINE)
        os.utime(folder / f"{name}.jsonl", (number, number))
    (folder / "gone.jsonl").symlink_to(tmp_path / "gone")
    assert [each.path.stem for each in at_home(tmp_path)] == ["new", "old"]


@pytest.mark.parametrize("each", formats(), ids=lambda each: each.name)
def test_the_documentation_names_every_format(each: LogFormat) -> None:
    """With where its files are and the versions that were read, as its row says."""
    text = (Path(__file__).parents[3] / "docs/history.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {each.name} |"))
    assert each.tested in row
    assert all(f"`~/{home}`" in row for home in each.homes[:2])
