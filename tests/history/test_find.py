"""Finding session logs: files and folders of any kind, and checkpoints in a git repository."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.history.find import Found, at_home, identify, named
from gateway.history.readers import LogFormat, formats
from gateway.history.session import Session

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
            assert problem(path).startswith("cannot be read: ")
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


def git(folder: Path, *arguments: str) -> None:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    settings = ("-c", "user.name=dev", "-c", "user.email=dev@example.com", "-c", "gc.auto=0")
    command = ["git", *settings, "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **own})


def checkpoint(folder: Path, where: str, session: str, text: str) -> None:
    """Add a checkpoint to the work tree of a repository, as Entire lays it out."""
    place = folder / where
    place.mkdir(parents=True)
    (place / "full.jsonl").write_text(text)
    (place / "metadata.json").write_text(json.dumps({"session_id": session, "agent": "any"}))
    (place / "prompt.txt").write_text("Repair it.")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two sessions in four checkpoints; the work tree is on another branch."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "entire/checkpoints/v1")
    lines = CLAUDE.read_text().splitlines(keepends=True)
    for number, count in enumerate((9, len(lines), 16)):
        checkpoint(folder, f"a{number}/cdef0123/0", "one", "".join(lines[:count]))
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "checkpoint")
    checkpoint(folder, "b0/cdef0123/1", "two", LINE)
    (folder / "b0" / "package.json").write_text("{}")
    (folder / "b0" / "foreign.jsonl").write_text("{}")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "checkpoint")
    git(folder, "checkout", "-q", "--orphan", "main")
    git(folder, "rm", "-rfq", ".")
    return folder


def test_checkpoints_of_a_repository_are_read(repository: Path) -> None:
    """The longest transcript of each session, whatever is checked out."""
    assert [each.name for each in repository.iterdir()] == [".git"]
    found = named([repository])
    (whole,) = sessions([identify(CLAUDE)])
    read = {each.id: each for each in sessions(found)}
    assert sorted(read) == sorted(["s", whole.id])
    assert read[whole.id].messages == whole.messages
    assert "entire/checkpoints/v1" in str(found[0].path)
    assert {each.size for each in found} == {CLAUDE.stat().st_size, len(LINE)}


def test_checkpoints_of_a_clone_are_read(repository: Path, tmp_path: Path) -> None:
    """On the branches of a remote, and in a bare repository."""
    git(tmp_path, "clone", "-q", "--no-checkout", str(repository), "clone")
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    for name in ("clone", "bare.git"):
        assert len(sessions(named([tmp_path / name]))) == 2


def test_a_broken_repository_has_one_line(tmp_path: Path) -> None:
    """Git itself says what is wrong."""
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert problem(tmp_path).startswith("git does not read this repository: ")


def test_objects_that_a_clone_lacks_are_not_fetched(repository: Path, tmp_path: Path) -> None:
    """A clone without contents says so, and asks no one for them."""
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", repository.as_uri(), "c")
    before = sorted((tmp_path / "c" / ".git" / "objects").rglob("*"))
    assert problem(tmp_path / "c").startswith("git does not read this repository: ")
    assert sorted((tmp_path / "c" / ".git" / "objects").rglob("*")) == before


def test_a_document_of_a_checkpoint_is_not_taken_for_lines(tmp_path: Path) -> None:
    """Each transcript is called `full.jsonl`, also one JSON document of several lines."""
    git(tmp_path, "init", "-q", "-b", "entire/checkpoints/v1")
    first = (LOGS / "opentelemetry" / "attributes.otlp.jsonl").read_text().partition("\n")[0]
    checkpoint(tmp_path, "aa/bb/0", "one", json.dumps(json.loads(first), indent=1))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "checkpoint")
    git(tmp_path, "checkout", "-q", "--orphan", "main")
    git(tmp_path, "rm", "-rfq", ".")
    (found,) = named([tmp_path])
    assert (found.open().name, len(sessions([found]))) == ("full.json", 1)


@pytest.mark.parametrize("each", formats(), ids=lambda each: each.name)
def test_the_documentation_names_every_format(each: LogFormat) -> None:
    """With where its files are and the versions that were read, as its row says."""
    text = (Path(__file__).parents[2] / "docs/history.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {each.name} |"))
    assert each.tested in row
    assert all(f"`~/{home}`" in row for home in each.homes[:2])
