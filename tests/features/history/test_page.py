"""`gateway history --html`: one file that loads nothing, and that one can send to a colleague."""

from __future__ import annotations

import os
import stat
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.cli import main
from steering_gateway_testing.claude_code_sessions import REJECTED, Log, looping, smooth, write_all

Capture = pytest.CaptureFixture[str]
LOADING = ("src", "srcset", "href", "xlink:href", "data", "action", "poster", "background")
SECRET = "sk-proj-Zq8vN2mXw7Lp4Rt9Ks3Hd6Fg1Jb5Yc0Va"
CANARY = "plumbago"
HOSTILE = "<script> alert(1) <img src=http://evil.test/x onerror=alert(1)>"


class Document(HTMLParser):
    """The tags, addresses and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in LOADING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.words += data


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def written(home: Path, *options: str) -> str:
    """The page about the sessions of a home directory."""
    file = home / "page.html"
    assert main(["history", "--html", str(file), *options]) == 0
    return file.read_text(encoding="utf-8")


def telling() -> list[Log]:
    """Sessions in which the canary is in every place that has words, paths and long ids."""
    log = Log(folder=f"/home/{CANARY}/shop").user(f"Where is the {CANARY}? Use {SECRET}.")
    for _ in range(8):
        log.bash(f"cat /srv/{CANARY}/cart.py", f"{CANARY}: no such file", error=True)
    log.answer("", ("Bash", {"command": f"rm -r {CANARY}"}))
    log.result(
        f"{REJECTED}To tell you how to proceed, the user said:\nnot the {CANARY}", error=True
    )
    order = {"description": f"Find the {CANARY}", "subagent_type": "Explore"}
    prompt = f"Find out where the {CANARY} is computed, and with what."
    for number in range(3):
        log.answer("", ("Task", {**order, "prompt": f"{prompt} {number}"})).result("cart.py")
    log.user("[Request interrupted by user]").user(f"stop, {CANARY} is another repository")
    log.answer(f"The {CANARY} is there. Next steps:\n- {CANARY}")
    log.lines[0]["sessionId"] = log.id
    agents = [Log(sub_agent=f"a{n}").user(f"{prompt} {n}").answer(CANARY) for n in range(3)]
    return [log, *agents]


def test_it_loads_nothing(home: Path, capsys: Capture) -> None:
    """It has no address, no script and no handler, and a browser is forbidden to load anything."""
    write_all([looping(), smooth()], home)
    text = written(home)
    document = Document(text)
    assert f"page: {home / 'page.html'}" in capsys.readouterr().out
    assert set(document.addresses) == {"#main"}
    assert not document.handlers
    for tag in ("script", "link", "img", "iframe", "object", "form"):
        assert tag not in document.tags
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@import" not in text


def test_its_sums_say_at_least_where_the_screen_does(home: Path) -> None:
    """Where the log has the usage of an answer before it ended."""
    log = smooth()
    log.lines[-1]["message"]["stop_reason"] = None
    write_all([log], home)
    words = " ".join(Document(written(home)).words.split())
    assert "Tokens≥4.4k" in words.replace("Tokens ", "Tokens")
    assert "1 step logged before the answer ended" in words


def test_it_holds_the_tables_and_findings_of_the_screen(home: Path) -> None:
    """Costs by project, session, sub-agent, model, hours and week, then cache, time and end."""
    write_all([*telling(), smooth()], home)
    words = " ".join(Document(written(home)).words.split())
    for said in ("By project", "By session", "By sub-agents", "By model", "By hours", "By week"):
        assert said in words
    assert "shop" in words
    assert "Explore3 started" in words
    assert "00000000" in words
    for finding in ("Cache losses", "Time", "Ends of sessions", "Alarms", "interrupted 1 time"):
        assert finding in words


def test_no_word_path_long_id_or_secret_is_in_it(home: Path) -> None:
    """Titles, tasks, reasons, commands, results and folders stay here; a secret does so always."""
    logs = telling()
    write_all(logs, home)
    text = written(home)
    assert CANARY not in text
    assert SECRET not in text
    assert logs[0].id not in text
    assert str(home) not in text


def test_words_come_with_the_option(home: Path) -> None:
    """Titles, tasks of sub-agents and reasons are in it then; secrets and folders are not."""
    logs = telling()
    write_all(logs, home)
    text = written(home, "--with-words")
    words = " ".join(Document(text).words.split())
    assert f"Where is the {CANARY}?" in words
    assert f"Find the {CANARY} (Explore)" in words
    assert f'you rejected: "not the {CANARY}"' in words
    assert SECRET not in text
    assert f"/home/{CANARY}" not in text
    assert logs[0].id not in text


def test_a_model_named_by_its_path_is_shown_without_the_folders(home: Path) -> None:
    """Local servers name a model by its file."""
    log = Log()
    log.model = f"/home/{CANARY}/models/qwen3.gguf"
    write_all([log.user("Go on.").answer("Done.")], home)
    text = written(home)
    assert "qwen3.gguf" in text
    assert CANARY not in text


def test_what_people_typed_is_never_markup(home: Path) -> None:
    """A title with tags is text."""
    write_all([Log(folder=f"/home/me/{HOSTILE[:8]}").user(HOSTILE).answer("Done.")], home)
    document = Document(written(home, "--with-words"))
    assert "script" not in document.tags
    assert "img" not in document.tags
    assert "alert(1)" in document.words


def test_only_its_owner_reads_the_file(home: Path) -> None:
    """Whatever the umask allows."""
    write_all([smooth()], home)
    before = os.umask(0)
    try:
        written(home)
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "page.html").stat().st_mode) == 0o600
    assert sorted(path.name for path in home.iterdir()) == [".claude", "page.html"]


def test_an_existing_file_is_kept_unless_forced(home: Path, capsys: Capture) -> None:
    """The message names the option; with it the file is replaced, also one that others read."""
    write_all([smooth()], home)
    file = home / "page.html"
    file.write_text("mine")
    assert main(["history", "--html", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert "Rename" not in written(home, "--force")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--html", "missing/page.html"], "there is no folder"),
        (["--html", ".", "--force"], "is there already"),
        (["--with-words"], "--with-words"),
        (["--force"], "--force"),
        (["--html", "page.html", "--json"], "--html"),
        (["show", "00000000", "--html", "page.html"], "--html"),
    ],
)
def test_what_cannot_be_written_is_refused(
    options: list[str],
    named: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """One line that names the option, and no file."""
    write_all([smooth()], home)
    monkeypatch.chdir(home)
    assert main(["history", *options]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert err.count("\n") == 1
    assert not (home / "page.html").exists()


def test_typed_sentences_are_on_it_only_with_words(home: Path) -> None:
    """What people typed in several sessions is theirs: `--with-words` shares it."""
    for number in (1, 2):
        log = Log(number, folder="/home/me/shop").wait(number * 86_400).user("Go.").answer("Ok.")
        log.user(f"never open draft PRs, says {CANARY} {number}").answer("Ok.").write(home)
    assert CANARY not in written(home)
    text = written(home, "--with-words", "--force")
    assert "Typed in nearly the same words in several sessions" in text
    assert f"<q>never open draft PRs, says {CANARY} 2</q> (Feb 4, 2026)" in text
