"""The project of a session is its repository, as far as the logs say."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli import main
from gateway.features.history.projects import repository_of
from steering_gateway_testing.claude_code_sessions import Log, write_all
from steering_gateway_testing.growth import exceeds_linear

Capture = pytest.CaptureFixture[str]
AT = "2026-02-02T09:00:00.000Z"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def claude(home: Path, number: int, folder: str) -> None:
    write_all([Log(number, folder=folder).user("Go.").answer("Done.")], home)


def codex(home: Path, name: str, folder: str, remote: str = "") -> None:
    """A session of Codex, with the address of its repository."""
    meta: dict[str, Any] = {"id": name, "cwd": folder, "cli_version": "0.142.1", "source": "cli"}
    if remote:
        meta["git"] = {"branch": "main", "repository_url": remote}
    parts = [{"type": "output_text", "text": f"Done: {name}."}]
    answer = {"type": "message", "role": "assistant", "content": parts}
    kinds = {"session_meta": meta, "response_item": answer}
    path = home / f".codex/sessions/2026/02/02/rollout-{name}.jsonl"
    write(path, *({"timestamp": AT, "type": kind, "payload": kinds[kind]} for kind in kinds))


def copilot(home: Path, name: str, **context: str) -> None:
    """A session of Copilot CLI."""
    start = {"sessionId": name, "copilotVersion": "1.0.64", "context": context}
    answer = {"messageId": f"m-{name}", "content": "Done.", "outputTokens": 3, "model": "gpt-5.4"}
    path = home / f".copilot/session-state/{name}/events.jsonl"
    lines = {"session.start": start, "assistant.message": answer}
    write(path, *({"type": kind, "timestamp": AT, "data": lines[kind]} for kind in lines))


def gemini(home: Path, name: str, digest: str) -> None:
    """A session of Gemini CLI before it kept the path of its project."""
    tokens = {"input": 9, "output": 1, "cached": 0, "thoughts": 0, "tool": 0, "total": 10}
    said = {
        "id": f"m-{name}",
        "timestamp": AT,
        "type": "gemini",
        "content": "Done.",
        "tokens": tokens,
    }
    document = {"sessionId": name, "projectHash": digest, "startTime": AT, "messages": [said]}
    write(home / f".gemini/tmp/{digest}/chats/session-{name}.json", document)


def digest_of(folder: Path | str) -> str:
    return hashlib.sha256(str(folder).encode()).hexdigest()


def projects(capsys: Capture, *options: str) -> dict[str, int]:
    """The number of sessions by project, of `--json`; the first screen has the same rows."""
    assert main(["history", *options, "--json"]) == 0
    found: dict[str, int] = {}
    for line in capsys.readouterr().out.splitlines():
        name = orjson.loads(line)["project"]
        found[name] = found.get(name, 0) + 1
    assert main(["history", *options]) == 0
    out = capsys.readouterr().out
    rows = out.partition("\nproject ")[2].partition("\nsession ")[0].splitlines()
    assert sorted(re.split(r"\s{2,}", row.strip())[0] for row in rows) == sorted(found)
    return found


def test_sessions_of_one_repository_are_one_project(home: Path, capsys: Capture) -> None:
    """Whichever agent names it, however it writes its address; a folder of which one session names
    the repository is that repository's in the others, too."""
    codex(home, "c1", "/home/me/shop", "https://github.com/Acme/shop.git")
    codex(home, "c2", "/opt/clone", "git@github.com:Acme/shop.git")
    codex(home, "c3", "/srv/x", "ssh://git@github.com:22/Acme/shop")
    copilot(home, "p1", cwd="/home/me/y/src", gitRoot="/home/me/y", repository="Acme/shop")
    claude(home, 1, "/home/me/shop")
    claude(home, 2, "/home/me/shop/.claude/worktrees/fix")
    claude(home, 3, "/home/me/y")
    assert projects(capsys) == {"shop": 7}


def test_folders_of_the_same_name_are_two_projects(home: Path, capsys: Capture) -> None:
    """Their names are the ends of their paths that no other has, or of the repositories' names."""
    claude(home, 1, "/home/me/acme/api")
    claude(home, 2, "/home/me/other/api")
    claude(home, 3, "/home/me/other/api")
    assert projects(capsys) == {"acme/api": 1, "other/api": 2}
    assert projects(capsys, "--project", "acme") == {"acme/api": 1}
    codex(home, "c1", "/home/me/acme/api", "https://github.com/Acme/api")
    codex(home, "c2", "/home/me/other/api", "https://github.com/Other/api")
    assert projects(capsys) == {"Acme/api": 2, "Other/api": 3}


def test_a_folder_of_windows_is_one_project_however_it_is_written(
    home: Path, capsys: Capture
) -> None:
    """Editors write the letter of the drive small, shells of Git write slashes."""
    for number, folder in enumerate(("c:\\code\\api", "C:\\code\\api", "C:/code/api/"), 1):
        claude(home, number, folder)
    assert projects(capsys) == {"api": 3}
    claude(home, 4, "D:\\code\\api")
    assert projects(capsys) == {"C:/code/api": 3, "D:/code/api": 1}


@pytest.mark.parametrize(
    ("folder", "project"),
    [
        ("/home/me/agentv.worktrees/fix", "/home/me/agentv"),
        ("/home/me/agentv__worktrees/fix/src", "/home/me/agentv"),
        ("/home/me/agentv-worktrees/fix", "/home/me/agentv"),
        ("/home/me/cli/.worktrees/3", "/home/me/cli"),
        ("/workspace/.worktrees/3", "/workspace"),
        ("/home/me/cli/worktrees/feature/x", "/home/me/cli"),
        ("/home/me/cli/.claude/worktrees/calm-otter", "/home/me/cli"),
        ("C:\\code\\cli\\.claude\\worktrees\\x", "C:/code/cli"),
        ("c:\\code\\cli\\", "C:/code/cli"),
        ("\\\\host\\code\\cli", "//host/code/cli"),
        ("C:\\Users\\me\\.worktrees\\fix", "C:/Users/me/.worktrees/fix"),
        ("/home/me/.codex/worktrees/1a2b/agentv/src", "agentv"),
        ("C:\\Users\\me\\.codex\\worktrees\\1a2b\\agentv", "agentv"),
        ("/home/me/.cursor/worktrees/agentv/x1y2", "agentv"),
        ("/Users/me/conductor/workspaces/agentv/riga", "agentv"),
        # no repository is named
        ("/home/me/.worktrees/fix", "/home/me/.worktrees/fix"),
        ("/home/me/worktrees/agentv-fix", "/home/me/worktrees/agentv-fix"),
        ("/root/.codex/worktrees/fix", "/root/.codex/worktrees/fix"),
        ("/srv/worktrees/fix", "/srv/worktrees/fix"),
        ("/home/me/.local/share/opencode/worktree/1a/otter", ""),
        ("/home/me/worktrees", "/home/me/worktrees"),
        ("/home/me/shop/", "/home/me/shop"),
    ],
)
def test_a_worktree_is_known_by_its_path(folder: str, project: str) -> None:
    """A usual form names the folder of the repository, or its name; any other folder is itself."""
    assert repository_of(folder) == (project or folder)


@pytest.mark.parametrize("piece", ["/worktrees", "/.w", "/a.worktrees", "/.codex/worktrees/a"])
def test_a_long_path_costs_linear_time(piece: str) -> None:
    """Whatever it repeats."""
    assert not exceeds_linear(
        lambda path: lambda: repository_of(path),
        lambda size: piece * (size // len(piece)),
        [2_000, 8_000, 32_000],
    )


def test_a_hash_is_resolved_by_a_session_or_a_folder_of_this_machine(
    home: Path, capsys: Capture
) -> None:
    """Gemini CLI kept the SHA-256 of the path alone; another agent's session has the path, or one
    below it, or it is a folder near the home directory. Any other project is not known."""
    gemini(home, "g1", digest_of("/srv/shop"))
    gemini(home, "g2", digest_of(home / "code" / "blog"))
    gemini(home, "g3", digest_of("/nobody/knows"))
    claude(home, 1, "/srv/shop/web")
    unknown = "unknown (Gemini CLI keeps only a hash)"
    assert projects(capsys) == {"web": 1, "shop": 1, unknown: 2}
    (home / "code" / "blog").mkdir(parents=True)
    claude(home, 2, "/srv/shop")
    assert projects(capsys) == {"web": 1, "shop": 2, "blog": 1, unknown: 1}


def test_the_sessions_of_a_resolved_project_are_kept(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--project` finds them by the name that the screen shows."""
    monkeypatch.chdir(home)
    gemini(home, "g1", digest_of("/srv/shop"))
    gemini(home, "g2", digest_of("/nobody/knows"))
    claude(home, 1, "/srv/shop")
    assert main(["history", "--project", "shop", "--keep"]) == 0
    assert "kept 2 sessions as past runs" in capsys.readouterr().out
