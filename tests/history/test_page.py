"""`gateway history --html`: one file that loads nothing and escapes what people and agents said."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from gateway.cli import main
from gateway.history.find import named
from gateway.history.page import page
from gateway.history.reading import read_file
from gateway.history.summary import summarise
from gateway.steering.policy import Policy
from tests.history.sessions import INTERRUPTED, REJECTED, Log, looping, smooth, write_all

Capture = pytest.CaptureFixture[str]
LOADING = ("src", "srcset", "href", "xlink:href", "data", "action", "poster", "background")


class Document(HTMLParser):
    """The tags, addresses, ids and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in LOADING]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def written(home: Path) -> str:
    """The page about the sessions of a home directory."""
    file = home / "page.html"
    assert main(["history", "--html", str(file)]) == 0
    return file.read_text(encoding="utf-8")


def test_it_loads_nothing(home: Path, capsys: Capture) -> None:
    """Its only links lead to its own parts, and a browser is forbidden to load anything."""
    write_all([looping(), smooth()], home)
    document = Document(written(home))
    assert capsys.readouterr().out.splitlines()[-1] == f"page: {home / 'page.html'}"
    assert document.addresses
    own = {f"#{name}" for name in document.ids}
    assert set(document.addresses) <= own
    assert len(own) == len(document.ids)
    for tag in ("script", "link", "img", "iframe", "object", "form"):
        assert tag not in document.tags
    text = (home / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@import" not in text


def test_it_holds_the_screen_and_the_worst_stretch(home: Path) -> None:
    """The sums, and the stretch with its chart, its steps and the person's words between them."""
    write_all([looping(), smooth()], home)
    text = written(home)
    words = " ".join(Document(text).words.split())
    for said in ("shop", "blog", "claude-sonnet-4-5-20250929", "2026-02-02", "17.6k", "$0.072"):
        assert said in words
    assert "You interrupted 1 time" in words
    assert "The gateway would have raised an alarm at step" in words
    assert "2026-02-02 09:0" in words
    assert "gateway history show 00000000 --steps 0-11" in words
    assert text.count('<rect class="marked"') + text.count('class="marked"') == 1
    assert text.count('id="stretch-1-step-') == 12
    assert "E assert 3 == 4 1 failed in 0.2s" in words
    assert words.rindex("stop, the fixture is wrong") > words.rindex("1 failed in 0.2s")
    assert "You interrupted stop" not in words
    assert "Rename the page." not in words


def test_only_a_part_of_a_long_stretch_is_shown(home: Path) -> None:
    """Its first and last steps, and the number of those between."""
    looping(times=60).write(home)
    text = written(home)
    assert text.count('id="stretch-1-step-') == 30
    assert "30 steps left out" in text
    assert 'id="stretch-1-step-0"' in text
    assert 'id="stretch-1-step-59"' in text


def test_a_long_result_is_cut_in_the_middle(home: Path) -> None:
    """Its end, where the error is, stays."""
    log = Log().user("Build it.").bash("make", "begin " + "x" * 30_000 + " end: error", error=True)
    log.user(INTERRUPTED)
    log.write(home)
    text = written(home)
    assert "end: error" in text
    assert "characters …" in text
    assert "x" * 5000 not in text


HOSTILE = (
    "</style></pre><script>alert(1)</script><img src=http://evil.test/x onerror=alert(1)>\x1b[2J"
)


def test_what_was_said_is_escaped(home: Path, capsys: Capture) -> None:
    """Markup in words, calls, results, names, folders and models is text."""
    plain = Document(_hostile(home, "harmless"))
    document = Document(_hostile(home, HOSTILE))
    assert document.handlers == []
    assert "\x1b" not in document.words
    assert "\x1b" not in capsys.readouterr().out
    for tag in ("script", "img"):
        assert tag not in document.tags
    assert document.tags.count("style") == plain.tags.count("style") == 1
    assert not any("evil" in address for address in document.addresses)
    assert document.words.count("<script>alert(1)</script>") >= 6


def _hostile(home: Path, said: str) -> str:
    log = Log(folder=f"/home/me/{said}").user(f"Task {said}")
    for _ in range(4):
        log.answer(f"Thought {said}", (f"Tool{said}", {"command": said, said: said}))
        log.result(f"Result {said}", error=True)
    log.user(INTERRUPTED).user(f"stop {said}")
    for line in log.lines:
        if line["type"] == "assistant":
            line["message"]["model"] = f"model-{said}"
    file = home / "hostile.jsonl"
    file.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in log.lines))
    out = home / "page.html"
    assert main(["history", str(file), "--html", str(out)]) == 0
    return out.read_text(encoding="utf-8")


def test_secrets_are_masked(home: Path) -> None:
    """A key that was typed, sent or printed is nowhere in the page, also where texts are cut."""
    key = "sk-ant-api03-" + "aB3" * 20
    log = Log().user(f"use {key}")
    for before, after in ((0, 0), (2982, 5000), (5000, 1460)):  # whole, and where texts are cut
        log.answer(f"I use {key}", ("Bash", {"command": f"curl -H 'x-api-key: {key}' localhost"}))
        log.result("y" * before + f" {key} " + "z" * after, error=True)
    log.answer("", ("Bash", {"command": "ls"}))
    log.result(f"{REJECTED}To tell you how to proceed, the user said:\nnot with {key}", error=True)
    log.user(INTERRUPTED).user(f"stop, {key} is mine")
    log.write(home)
    text = written(home)
    assert "[masked:" in text
    for part in (key[:16], key[-12:]):
        assert part not in text


def test_sessions_without_times_prices_and_trouble_have_a_page(home: Path) -> None:
    """Unknown values are said or left out."""
    bare = Log(1).user("Hello.").answer("Hello.")
    unknown = looping(2)
    for log in (bare, unknown):
        for line in log.lines:
            del line["timestamp"]
            if line["type"] == "assistant":
                line["message"] |= {"model": "home-made", "usage": {}}
    nothing = Log(3).user("Hello?")
    write_all([bare], home)
    assert "No stretch of trouble was found." in written(home)
    write_all([unknown, nothing], home)
    text = written(home)
    assert "no date" in text
    assert 'id="stretch-1-step-11"' in text
    assert "UTC" not in text


def test_a_session_that_is_gone_is_said(tmp_path: Path) -> None:
    """A log that was deleted while the others were read takes no chart and no page away."""
    path = looping().write(tmp_path)
    found = named([path])
    summary = summarise(read_file(found[0], Policy()).sessions)
    path.unlink()
    text = page(summary, found, Policy())
    assert "The log of this session could not be read again." in text
    assert "stretch-1-step" not in text


def test_a_page_that_cannot_be_written_is_an_error(home: Path, capsys: Capture) -> None:
    """One line that names the option and the file."""
    smooth().write(home)
    assert main(["history", "--html", str(home / "no" / "page.html")]) == 2
    err = capsys.readouterr().err
    assert "--html: " in err
    assert "No such file or directory" in err
