"""`gateway history brief --read`: the reader chooses lines of an instruction file among what people
typed, and none of them says something else than its sentence."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.stores.learning import JOBS
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.claude_code_sessions import Log
from steering_gateway_testing.diffs import APPLY
from steering_gateway_testing.values import Fault, FaultKind
from tests.features.learning.reader.reading import MODEL, TOKENS, USED, opened, settings
from tests.postgres import empty_database

Capture = pytest.CaptureFixture[str]
TYPED = "never open draft PRs, i review real ones."
DIFF = '+- Never open draft pull requests. <!-- typed 2026-02-03: "never open draft PRs, i review'


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream: ScriptedUpstream) -> Path:
    """The folder of a project whose people typed a rule twice, with a config that names a
    reader."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for number, words in enumerate((TYPED, "and again no draft PR please"), 1):
        log = Log(number, folder=str(folder)).wait(number * 86_400).user("Go.").answer("Done.")
        log.user(words).answer("Done.").write(tmp_path)
    written(folder, settings(upstream, str(tmp_path / "runs.db")))
    return folder


def written(folder: Path, config: dict[str, Any]) -> None:
    """The config of the project's folder."""
    (folder / "config.yaml").write_text(json.dumps(config))


def numbers(request: ReceivedRequest) -> dict[str, str]:
    """The sentences that the model was shown, and their numbers."""
    shown = json.loads(request.messages[-1]["content"])["typed"]
    return {words: number for number, _, words in (x.partition(": ") for x in shown.splitlines())}


def line(sentence: str, words: str) -> Callable[[ReceivedRequest], Reply]:
    """A model that gives these words as the line of a sentence."""
    return lambda request: Reply(f"{numbers(request)[sentence]}: {words}", usage=USED)


async def spent(**where: Any) -> tuple[int, float]:
    """Tokens and dollars that the reader has used."""
    async with opened(**where) as stores:
        return await stores.learning.spent(JOBS, None, 0.0)


def test_the_reader_adds_a_line_with_its_words_and_day(
    shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """It prints a diff that `patch` applies and changes nothing; with `--write` the file has the
    same. The second time there is nothing new. What it cost is said, and counts for the day."""
    upstream.default = line(TYPED, "Never open draft pull requests.")
    (shop / "CLAUDE.md").write_bytes(b"# Shop\r\n\xff no end")
    assert main(["history", "brief", "--read"]) == 0
    printed = capsys.readouterr()
    assert DIFF in printed.out
    assert f"asked {MODEL}: {TOKENS} tokens, $0.0075" in printed.err
    assert (shop / "CLAUDE.md").read_bytes() == b"# Shop\r\n\xff no end"
    (shop / "CLAUDE.md").write_bytes(b"# Shop\n")
    assert main(["history", "brief", "--read"]) == 0
    diff = capsys.readouterr().out
    assert main(["history", "brief", "--write"]) == 0
    assert capsys.readouterr().out == diff
    once = (shop / "CLAUDE.md").read_text()
    (shop / "CLAUDE.md").write_bytes(b"# Shop\n")
    subprocess.run(APPLY, input=diff, text=True, check=True, timeout=60)
    assert (shop / "CLAUDE.md").read_text() == once
    (request, *_) = upstream.requests
    assert request.header("authorization") == "Bearer sk-own"
    assert asyncio.run(spent(path=str(shop.parent / "runs.db"))) == (3 * TOKENS, 0.0225)
    upstream.default = Reply("none", usage=USED)
    assert main(["history", "brief", "--write"]) == 0
    assert TYPED not in numbers(upstream.requests[-1])
    assert (shop / "CLAUDE.md").read_text() == once


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# Shop\n\n## Rules\n\n- Use tabs.\n", ""),
        ("# Shop\r\n\r\n## Rules\r\n\r\n- Use tabs.\r\n", ""),
        ("## Rules\n\n- Use tabs.\n\n### Tests\n\n- One each.\n", ""),
        ("## Rules\n\n- Use tabs.\n", "\n## Style\n\nShort.\n"),
        ("## Rules\n\n```\n# build\nmake\n```\n- Use tabs.\n", "\n\n# Style\n"),
        ("## Rules\r\n", "\r\n## Style"),
        ("## Rules of the house\n\n## Rules\n", ""),
    ],
)
def test_lines_are_added_under_the_heading_that_stands(
    before: str, after: str, shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """At the end of that chapter, whatever follows it; the rest of the file stays as it is."""
    upstream.default = line(TYPED, "Never open draft PRs.")
    (shop / "CLAUDE.md").write_bytes(f"{before}{after}".encode())
    assert main(["history", "brief", "--write"]) == 0
    written = (shop / "CLAUDE.md").read_bytes().decode()
    assert written.startswith(f"{before}- Never open draft PRs. <!-- typed")
    end = "\r\n" if "\r" in before else "\n"
    assert written.endswith(f'i review real ones." -->{end}{after}')
    (shop / "CLAUDE.md").write_bytes(f"{before}{after}".encode())
    diff = capsys.readouterr().out.encode()
    subprocess.run(APPLY, input=diff, check=True, timeout=60)
    assert (shop / "CLAUDE.md").read_bytes().decode() == written


@pytest.mark.parametrize("before", [b"", b"# Shop", b"## Rules of the house\n", b"Stra\xdfe\r\n"])
def test_a_file_without_the_heading_gets_it(
    before: bytes, shop: Path, upstream: ScriptedUpstream
) -> None:
    """Once, at its end; every byte that was there stays, also one that is no UTF-8."""
    upstream.default = line(TYPED, "Never open draft PRs.")
    if before:
        (shop / "CLAUDE.md").write_bytes(before)
    for _ in range(2):
        assert main(["history", "brief", "--write"]) == 0
        written = (shop / ("CLAUDE.md" if before else "AGENTS.md")).read_bytes()
        assert written.startswith(before)
        lines = written[len(before) :].split()
        assert lines[:4] == b"## Rules - Never".split()
        upstream.default = Reply("none", usage=USED)


@pytest.mark.parametrize(
    "words",
    [
        "Open draft PRs.",
        "Always open draft PRs.",
        "Don't always open draft PRs.",
        "Never close draft PRs.",
        "Never open PRs.",
        "Never open draft PRs, we push to main.",
        "Never open draft PRs. Always force push.",
        "Run make test before each commit.",
        "Never open draft PRs on 3 May.",
    ],
)
def test_a_line_that_says_something_else_is_left_out_and_said(
    words: str, shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """A model that turns "never" into the habit, invents a rule or a reason, or changes what a
    sentence is about."""
    upstream.default = line(TYPED, words)
    assert main(["history", "brief", "--write"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"left out, it is not what was typed: {words} ({TYPED})" in printed.err
    assert not (shop / "AGENTS.md").exists()


@pytest.mark.parametrize(
    "words",
    [
        "<!-- Never --> open draft PRs.",
        "~~Never~~ open draft PRs.",
        "<del>Never</del> open draft PRs.",
    ],
)
def test_no_word_of_a_line_is_hidden(
    words: str, shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """What a page shows without its first word says the opposite."""
    upstream.default = line(TYPED, words)
    assert main(["history", "brief", "--write"]) == 0
    assert not (shop / "AGENTS.md").exists()
    upstream.default = line(TYPED, "Never open draft PRs. <!--")
    assert main(["history", "brief", "--read"]) == 0
    assert "+- Never open draft PRs. <!-- typed" in capsys.readouterr().out


def test_what_the_model_says_moves_no_cursor(
    shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """A line that is left out is shown, without the sequences of a terminal."""
    upstream.default = line(TYPED, "Open\x1b[2J draft PRs.")
    assert main(["history", "brief", "--read"]) == 0
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["CLAUDE.md", "AGENTS.md"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_leads_to_no_file_elsewhere(
    name: str, there: bool, shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """An agent can make one; one to a file beside it is followed, and stays a link."""
    other = shop.parent / "profile"
    if there:
        other.write_text("mine\n")
    (shop / name).symlink_to(other)
    upstream.default = line(TYPED, "Never open draft PRs.")
    status = main(["history", "brief", "--write"])
    if there or name == "AGENTS.md":
        assert status == 2
        assert f"{name} is a link to another folder" in capsys.readouterr().err
    assert other.exists() == there
    if there:
        assert other.read_text() == "mine\n"
    (shop / name).unlink()
    (shop / "RULES.md").write_text("# Shop\n")
    (shop / name).symlink_to("RULES.md")
    assert main(["history", "brief", "--write"]) == 0
    assert "Never open draft PRs." in (shop / "RULES.md").read_text()
    assert (shop / name).is_symlink()


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (Reply("I would rather not.\n\x00{}", usage=USED), 0, f"{TOKENS} tokens, $0.0075"),
        (Reply("99: Never open draft PRs.", usage=USED), 0, "left out"),
        (Reply("", usage=USED), 2, f"{TOKENS} tokens, $0.0075"),
        (Fault(FaultKind.SERVER_ERROR), 2, "500"),
        (Fault(FaultKind.UNAUTHORIZED), 2, "401"),
        (Fault(FaultKind.DROP_BEFORE_RESPONSE), 2, "no answer"),
        (Fault(FaultKind.HTML_ERROR), 2, "502"),
    ],
)
def test_a_model_without_a_usable_answer_changes_nothing(
    answer: Any, status: int, said: str, shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """Garbage, a number that nobody was shown, or no answer: it is said with what was paid."""
    upstream.default = answer
    assert main(["history", "brief", "--write"]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert not (shop / "AGENTS.md").exists()


def test_contradictions_and_questions_are_not_shown(shop: Path, upstream: ScriptedUpstream) -> None:
    """Of two sentences that contradict each other neither can become a line."""
    both = ("always rebase before a push", "never rebase before a push", "a draft PR again?")
    for number, words in enumerate(both, 3):
        log = Log(number, folder=str(shop)).wait(number * 86_400).user("Go.").answer("Done.")
        log.user(words).answer("Done.").write(shop.parent)
    upstream.default = Reply("none", usage=USED)
    assert main(["history", "brief", "--read"]) == 0
    assert set(numbers(upstream.requests[-1])) == {TYPED, "and again no draft PR please"}


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_its_limits_and_the_budgets_hold(
    place: str, shop: Path, upstream: ScriptedUpstream, capsys: Capture
) -> None:
    """Used up for the day, no call is made; a budget of the operator counts the calls, and refuses
    the next one."""
    upstream.default = Reply("none", usage=USED)
    with ExitStack() as stack:
        where = {"path": str(shop.parent / "own.db")}
        if place == "postgres":
            where = {"url": stack.enter_context(empty_database())}
        config = settings(upstream, "", tokens_per_day=TOKENS) | {"storage": where}
        written(shop, config)
        assert main(["history", "brief", "--read"]) == 0
        assert main(["history", "brief", "--read"]) == 2
        assert "may use no more today" in capsys.readouterr().err
        limits = {"name": "own", "scope": "tenant", "limits": {"tokens": 10}}
        written(shop, {**config, "reader": {"model": MODEL}, "budgets": [limits]})
        assert main(["history", "brief", "--read"]) == 0
        capsys.readouterr()
        assert main(["history", "brief", "--read"]) == 2
        assert f"{TOKENS} of the 10-token budget is used" in capsys.readouterr().err
        assert asyncio.run(spent(**where)) == (2 * TOKENS, 0.015)
    assert len(upstream.requests) == 2


def test_where_nobody_can_read_that_is_said(shop: Path, capsys: Capture) -> None:
    """Without `reader.model`, elsewhere, and with another verb."""
    (shop / "config.yaml").unlink()
    assert main(["history", "brief", "--read"]) == 2
    assert "reader.model is not set" in capsys.readouterr().err
    assert main(["history", "typed", "--read"]) == 2
    assert "only with `brief`" in capsys.readouterr().err
    (shop / "other").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop / "other")
        assert main(["history", "brief", "--read"]) == 2
    assert "brief: no sessions of this project, " in capsys.readouterr().err
