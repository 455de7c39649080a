"""Sentences that people typed in several sessions, as they typed it: `gateway history typed`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cli import main
from gateway.features.history.session import Session
from gateway.features.history.typed import typed_again
from gateway.text.typed_not_pasted import typed_sentences
from steering_gateway_testing.claude_code_sessions import INTERRUPTED, REJECTED, Log
from steering_gateway_testing.diffs import APPLY
from steering_gateway_testing.patience import run_to_end

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def sessions(home: Path, *texts: str, folder: str = "/home/me/shop", first: int = 1) -> None:
    """One session for each text, a day apart."""
    for number, text in enumerate(texts, first):
        log = Log(number, folder=folder).wait(number * 86_400).user("Go.").answer("Done.")
        log.user(text).answer("Done.").write(home)


def printed(capsys: Capture, *options: str) -> str:
    """The output of the command, with single spaces."""
    assert main(["history", *options]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_was_typed_again_is_listed_in_its_own_words(home: Path, capsys: Capture) -> None:
    """Two sentences with the same two words about work, in two sessions: both as they were typed,
    with dates and the sessions to open; what was typed once is not in it."""
    sessions(
        home,
        "never open draft PRs, i review real ones. Make the header blue.",
        "and again no draft PR please",
        "why is the footer grey?",
    )
    out = printed(capsys, "typed")
    assert "typed in several sessions of shop; they need not mean the same:" in out
    assert "1. about draft, pr: 2 sentences in 2 sessions, Feb 3, 2026 to Feb 4, 2026" in out
    assert '"and again no draft PR please" (Feb 4) gateway history show 0000' in out
    assert '"never open draft PRs, i review real ones." (Feb 3) gateway history show' in out
    assert f"gateway history show {Log(1).id} --steps 0" in out
    assert "header" not in out
    assert "footer" not in out


def test_the_first_screen_ends_with_what_was_typed_in_nearly_equal_words(
    home: Path, capsys: Capture
) -> None:
    """The newest wording, how often and in how many sessions; a sentence that shares two words and
    says something else is counted in the list of `typed` alone, which the screen names."""
    texts = (
        "please open a draft PR",
        "is the draft PR of last week merged?",
        "open a draft PR now",
    )
    sessions(home, *texts, "open a draft PR")
    out = printed(capsys)
    assert "Typed in nearly the same words in several sessions of shop: 1. 3 sen" in out
    assert '3 sessions, Feb 3, 2026 to Feb 6, 2026 "open a draft PR" (Feb 6' in out
    assert "merged" not in out
    assert "whether or not they mean the same: gateway history typed" in out
    assert "1. about draft, pr: 4 sentences in 4 sessions" in printed(capsys, "typed")


def test_sentences_that_share_two_words_were_not_typed_again(home: Path, capsys: Capture) -> None:
    """The first screen says nothing of them but how to read them."""
    sessions(home, "do we push the checkpoint branch?", "name the branch of that checkpoint here")
    out = printed(capsys)
    assert "Typed in nearly" not in out
    assert "gateway history typed" in out


def test_names_that_english_does_not_have_join_sentences(home: Path, capsys: Capture) -> None:
    """A team's own tool says how work is done, whatever else the sentence is about."""
    sessions(home, "ask coderabbit for its opinion", "what opinion has coderabbit?", "no opinion")
    assert "1. about coderabbit, opinion: 2 sentences in 2 sessions" in printed(capsys, "typed")


def test_what_is_typed_on_more_days_comes_first(home: Path, capsys: Capture) -> None:
    """Three days before two; of two equal ones the newer."""
    sessions(home, "run lint and tests", "lint the tests", "tests, then lint", "merge my branch")
    sessions(home, "merge that branch", "note the issue", "note this issue", first=5)
    out = printed(capsys, "typed")
    assert out.index("lint, test") < out.index("issue, note") < out.index("branch, merge")


def test_the_shortest_wordings_follow_the_newest(home: Path, capsys: Capture) -> None:
    """Of many wordings those are shown that say least besides."""
    long = "when all of that is done, add a todo for the"
    sessions(home, "add a todo", *(f"{long} {x}" for x in ("red", "old", "big", "new", "end")))
    typed = printed(capsys, "typed")
    assert typed.index(f'"{long} end"') < typed.index('"add a todo"') < typed.index(f'"{long} new"')
    assert f'"{long} red"' not in typed


def test_nearly_equal_wordings_give_way_to_others(home: Path, capsys: Capture) -> None:
    """A sentence that says something else is shown before the fourth way to write the first."""
    same = ("commit and push", "please commit, push", "yes, commit, then push", "commit push now")
    sessions(home, "commit, push and open a draft PR", *same, "do we commit and push it here?")
    typed = printed(capsys, "typed")
    draft = typed.index('"commit, push and open a draft PR"')
    assert typed.index('"commit push now"') < draft < typed.index('"please commit, push"')


WORDS = st.sampled_from(["draft", "pr", "branch", "main", "push", "test", "lint", "footer", "blue"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(WORDS, min_size=2, max_size=5, unique=True).map(" ".join),
    st.sampled_from(["never", "don't", "do not", "no", "please no", "avoid", "nie", "sin", "不"]),
    st.booleans(),
)
def test_no_sentence_is_joined_with_its_denial(wish: str, denial: str, first: bool) -> None:
    """Neither where the denial was typed first, nor where each was typed in several sessions."""
    both = [wish, f"{denial} {wish}"]
    texts = [*(both if first else both[::-1]), both[0]]
    found = typed_again([session(number, text) for number, text in enumerate(texts)])
    assert [{each.words for each in entry.sentences} for entry in found] == [{wish}]


def session(number: int, text: str) -> Session:
    """A session in which this was typed."""
    made = Session(id=f"s{number}", agent="any", started=number * 86_400.0)
    made.user(text, text, number * 86_400.0)
    return made


def test_each_project_has_a_list_of_its_own(home: Path, capsys: Capture) -> None:
    """A sentence in two projects was typed in several sessions of neither."""
    sessions(home, "open a draft PR")
    sessions(home, "open a draft PR", folder="/home/me/other", first=2)
    assert main(["history", "typed"]) == 2
    assert "nothing was typed in several sessions of one project" in capsys.readouterr().err


def test_a_template_is_nobodys(home: Path, capsys: Capture) -> None:
    """A text that begins with the same 500 characters in several sessions."""
    template = "Review the branch and comment on its tests. " * 12
    sessions(home, template + "one", template + "two")
    assert main(["history", "typed"]) == 2
    assert "nothing was typed" in capsys.readouterr().err


def test_a_long_text_sent_twice_in_one_session_is_a_persons(home: Path, capsys: Capture) -> None:
    """It is no template: nothing like it is in another session."""
    long = "Always run the linter before you push the branch. " * 12
    Log(1).user(f"{long}One.").answer("Done.").user(f"{long}Two.").answer("Done.").write(home)
    sessions(home, "run the linter before you push the branch", first=2)
    assert "linter before you push" in printed(capsys, "typed")


def test_a_copy_of_a_session_is_no_repetition(home: Path, capsys: Capture) -> None:
    """A fork holds the messages before it, with their times."""
    for number in (1, 2):
        Log(number).user("open a draft PR").answer("Done.").write(home)
    assert main(["history", "typed"]) == 2
    assert "nothing was typed" in capsys.readouterr().err


def test_secrets_are_masked(home: Path, capsys: Capture) -> None:
    """A key that was typed is in no list."""
    key = "sk-ant-api03-" + "a1B2c3D4" * 12
    sessions(home, f"deploy to staging with {key}", f"use {key} for the staging deploy")
    assert key not in printed(capsys, "typed")


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("no, revert that. Then push!", ["no, revert that.", "Then push!"]),
        ("look:\n\n```\ndraft PR\n```\n\nwhy?", ["why?"]),
        ("what is this?\n\nTraceback (most recent call last):\n  File x", ["what is this?"]),
        ("$ git push\nremote: denied", []),
        ("see here\n\nFound one\nFound two\nFound three\nFound four", ["see here"]),
        ("> quoted words\nagreed, do that", ["agreed, do that"]),
        ("- one thing\n- another thing", []),
        ("diff --git a/x b/x\n@@ -1 +1 @@\n-one\n+two\n three", []),
        ("that fails \u23fa Bash(ls)", []),
        (
            "can you check this: The function silently returns an empty result on errors.",
            [],
        ),
        (
            "The `read` function returns nothing. Consider adding a test for loadFile() there.",
            [],
        ),
        ("look at it\n\nMedium Severity\n\nThat treats a missing file as present.", ["look at it"]),
        ("why?\n\nMissing file taken as present\n\n**High Severity**\n\nIt treats", ["why?"]),
        ("Missing file taken as present\nlow severity\nIt is not there.\n\nFix it.", []),
        ('isThere() checks the prefix "dir/". relPath has other separators on Windows.', []),
        ("Consider reading each file once.\n\ncan't git do that?", ["can't git do that?"]),
        ("Handle long lines in chunks.go:84 - A line passes through without an error", []),
        ('why not booleans?   "enabled": true,\n  "local": true', ["why not booleans?"]),
        ("ok\n\nIn `@src/a.ts` around lines 12 - 20, the handler never awaits.", ["ok"]),
        ("**<sub>![P1 Badge](https://x.invalid/p1)</sub>  Never read twice**", []),
        ("still there.\n\nme@host shop % pnpm build\n\nAll written", ["still there."]),
        ("The cleanest way is a field: - feels like clutter?", []),
        ("The package lacks unit tests. Consider adding tests to verify its edge cases.", []),
        (
            "please fix: the count is off vs. the log. When a file is removed, the value of "
            "totalCommitted is computed without it and too high. This is an error.",
            ["please fix: the count is off vs. the log."],
        ),
        (
            "Please remove the helper readAll() from the two modules that still have it now.",
            ["Please remove the helper readAll() from the two modules that still have it now."],
        ),
        (
            "Nie direkt auf main pushen! Erst die Tests.",
            ["Nie direkt auf main pushen!", "Erst die Tests."],
        ),
        ("不要直接推送到主分支。先运行测试。", ["不要直接推送到主分支。", "先运行测试。"]),
        ("把PR合并到main\uff0c然后测试。", ["把PR合并到main\uff0c然后测试。"]),
        (
            "¿Puedes abrir un PR? No hagas push a main.",
            ["¿Puedes abrir un PR?", "No hagas push a main."],
        ),
    ],
)
def test_only_sentences_of_the_person_are_taken(text: str, own: list[str]) -> None:
    """Code, output, logs, diffs, quotations, lists and reports are not typed, in any language."""
    assert list(typed_sentences(text)) == own


@pytest.mark.parametrize(
    ("one", "two", "shared"),
    [
        ("Bitte nie direkt auf main pushen", "nie auf main pushen!", "main, pushen: 2"),
        ("不要推送到主分支", "请不要推送代码", "推送"),
        ("siempre corre las pruebas antes", "las pruebas siempre primero", "prueba, siempre"),
    ],
)
def test_other_languages_are_listed_alike(
    one: str, two: str, shared: str, home: Path, capsys: Capture
) -> None:
    """The same table has words about work in other languages, and names are names in all."""
    sessions(home, one, two)
    out = printed(capsys, "typed")
    assert shared in out
    assert f'"{one}"' in out
    assert f'"{two}"' in out


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Kannst du dir die Anmeldung ansehen?", "kannst du die alte Tabelle löschen?"),
        ("La página es muy lenta.", "El botón es muy pequeño en el móvil."),
        ("La page est trop lente.", "Le bouton est trop petit, c'est la même chose."),
        ("你可以看一下登录页面吗\uff1f", "你可以删除那个旧的表吗\uff1f"),
        ("请为这个写一个测试", "运行测试"),
        ("ページが遅すぎます。", "フィルターが間違っています。"),
    ],
)
def test_common_words_of_other_languages_join_nothing(
    one: str, two: str, home: Path, capsys: Capture
) -> None:
    """Articles, pronouns, auxiliaries and endings say nothing, as in English; and a word of two
    signs is one word."""
    sessions(home, one, two)
    assert main(["history", "typed"]) == 2
    assert "nothing was typed in several sessions" in capsys.readouterr().err


def test_words_beside_a_script_without_spaces_are_words(home: Path, capsys: Capture) -> None:
    """A name in Latin letters needs no space beside it there."""
    sessions(home, "先にlintを実行、次にbuild", "lintとbuildを先に")
    assert "1. about build, lint: 2 sentences in 2 sessions" in printed(capsys, "typed")


def acts(*lines: str) -> Log:
    """A session in which the person interrupted, and typed these lines after it."""
    log = Log(1).user("Fix the header.").bash("ls", "a").user(INTERRUPTED)
    for line in lines:
        log.user(line)
    return log.answer("Done.")


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (acts("no, the footer, not the header"), True),
        (acts("remote: denied\nfatal: no access"), True),
        (acts(), False),
        (Log(1).user("Go.").bash("rm x", REJECTED + "the user said:\nnever delete files"), True),
        (Log(1).user("Go.").bash("rm x", REJECTED), False),
        (acts("nein, nicht so: erst die Tests"), True),
        (acts("不要删除文件"), True),
    ],
)
def test_trouble_is_where_somebody_said_so(
    log: Log, shown: bool, home: Path, capsys: Capture
) -> None:
    """An act without words, and without a message right after it, is counted and is no place to
    look; in every language."""
    log.write(home)
    assert ("Places to look at" in printed(capsys)) is shown


def test_lines_of_one_event_are_one_place(home: Path, capsys: Capture) -> None:
    """Two calls of one answer that were rejected with the same words."""
    said = REJECTED + "the user said:\nwrong file"
    Log(1).user("Go.").answer("", ("Edit", {})).result(said).user(INTERRUPTED).user(
        "wrong file, again"
    ).answer("Ok.").write(home)
    out = printed(capsys)
    assert out.count("you rejected") == 1
    assert "you interrupted:" not in out


AGENT = """
import sys
prompt = sys.stdin.read()
assert '"never open draft PRs"' in prompt and "- Use tabs." in prompt and "opposite" in prompt
print("--- a/CLAUDE.md\\n+++ b/CLAUDE.md\\n@@ -1 +1,2 @@\\n - Use tabs.")
print('+- Never open draft PRs. <!-- typed Feb 3, 2026: "never open draft PRs" -->')
"""


def test_an_agent_of_the_person_writes_the_file(home: Path) -> None:
    """One command in the project's folder: `gateway history brief | AGENT | patch -p1`. The typed
    words and their day stay beside the line."""
    folder = home / "shop"
    folder.mkdir()
    (folder / "CLAUDE.md").write_text("- Use tabs.\n")
    sessions(home, "never open draft PRs", "again, no draft PR", folder=str(folder))
    (home / "agent.py").write_text(AGENT)
    program = f"{sys.executable} -m gateway history brief | {sys.executable} {home}/agent.py"
    env = {**os.environ, "PYTHONPATH": str(Path.cwd()), "HOME": str(home)}
    pipe = f"set -o pipefail; {program} | {shlex.join(APPLY)}"  # as in the docs
    done = run_to_end(["/bin/bash", "-c", pipe], env, folder)
    assert done.returncode == 0, done.stderr
    written = (folder / "CLAUDE.md").read_text()
    assert written.startswith("- Use tabs.\n- Never open draft PRs. <!-- typed Feb 3, 2026:")


@pytest.mark.parametrize("verb", [["brief"], ["brief", "--read"]])
def test_a_brief_is_of_no_other_project(
    verb: list[str], home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder without sessions, also one with the last name of a project, there is none."""
    sessions(home, "open a draft PR", "push a draft PR")
    folder = home / "other" / "shop"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert main(["history", *verb]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"brief: no sessions of this project, {folder}" in printed.err


def test_a_brief_is_of_the_repository_of_its_folder(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was typed in a worktree of it; another project with its last name has its own, and
    both have the ends of their paths as names."""
    folder = home / "acme" / "api"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    sessions(home, "open a draft PR", folder=str(folder))
    sessions(home, "push a draft PR", folder=f"{folder}/.claude/worktrees/fix", first=2)
    sessions(home, "merge my branch", "merge that branch", folder="/home/me/api", first=3)
    out = printed(capsys, "brief")
    assert "read in the project acme/api." in out
    assert '"open a draft PR"' in out
    assert '"push a draft PR"' in out
    assert "branch" not in out.partition("# Sentences")[2]
    assert "# AGENTS.md (empty)" in out
    out = printed(capsys, "typed")
    assert "in several sessions of me/api;" in out


def test_projects_with_the_same_last_name_have_lists_of_their_own(
    home: Path, capsys: Capture
) -> None:
    """A sentence that was typed once in each was typed again in neither."""
    sessions(home, "open a draft PR", folder="/home/me/acme/api")
    sessions(home, "open a draft PR", folder="/home/me/other/api", first=2)
    assert main(["history", "typed"]) == 2
    assert "nothing was typed in several sessions of one project" in capsys.readouterr().err


def test_a_sentence_without_a_time_has_none(home: Path, capsys: Capture) -> None:
    """Neither in JSON nor on the screen is it of 1970."""
    for number, text in enumerate(("open a draft PR", "push a draft PR"), 1):
        log = Log(number).user(text).answer("Done.")
        for line in log.lines:
            del line["timestamp"]
        log.write(home)
    assert main(["history", "typed", "--json"]) == 0
    (entry,) = (orjson.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (entry["first"], entry["last"]) == (None, None)
    assert [each["started"] for each in entry["typed"]] == [None, None]
    assert "no date" in printed(capsys, "typed")


def test_the_list_as_json_has_every_sentence(home: Path, capsys: Capture) -> None:
    """One object for each entry, with all its sentences; the brief has no JSON."""
    sessions(home, "open a draft PR", "push a draft PR")
    assert main(["history", "typed", "--json"]) == 0
    (entry,) = (orjson.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (entry["project"], entry["shared"]) == ("shop", ["draft", "pr"])
    assert (entry["times"], entry["sessions"]) == (2, 2)
    assert [each["words"] for each in entry["typed"]] == ["push a draft PR", "open a draft PR"]
    assert entry["typed"][0]["session"].endswith("2")
    assert entry["last"] > entry["first"]


@pytest.mark.parametrize(
    ("texts", "noted"),
    [
        (("Can you open a draft PR and push it?", "never do that again please"), False),
        (("Bitte nie direkt auf main pushen", "Erst die Tests, dann der Kopf der Seite"), True),
        (("不要推送到主分支", "先运行测试"), True),
        (("no subas nada a main", "corre las pruebas antes de subir"), True),
    ],
)
def test_what_is_known_in_english_alone_is_said(
    texts: tuple[str, ...], noted: bool, home: Path, capsys: Capture
) -> None:
    """Where most of what was typed is in another language the screen names what it cannot read."""
    log = Log(1)
    for text in texts:
        log.user(text).answer("Done.")
    log.write(home)
    assert ("In languages other than English, headings" in printed(capsys)) is noted


CONTRADICTIONS = {
    "never": ("always open draft PRs", "never open draft PRs", "draft, open, pr"),
    "a denial": ("please open draft PRs", "don't open a draft PR", "draft, open, pr"),
    "an order": ("run the tests before you commit", "run tests after commit", "commit, run, test"),
    "another name": ("use pnpm for the builds", "use npm for builds!", "build, use"),
    "another number": ("use port 3000 for dev", "use port 4000 for dev", "dev, port, use"),
    "an opposite": ("indent with tabs", "indent with spaces", "indent"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_sentences_that_contradict_each_other_stand_together(
    kind: str, home: Path, capsys: Capture
) -> None:
    """The same words but for a denial, an opposite, another number or name: both with their dates,
    the newest last, on the first screen too; nothing is decided."""
    one, two, shared = CONTRADICTIONS[kind]
    sessions(home, one, two)
    for verb in ([], ["typed"]):
        out = printed(capsys, *verb)
        place = out.index(f"{shared}: said in different ways, the newest last; which holds is not")
        assert place < out.index(f'"{one}" (Feb 3', place) < out.index(f'"{two}" (Feb 4', place)
    assert main(["history", "typed", "--json"]) == 0
    entries = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    (entry,) = [each for each in entries if each["contradict"]]
    assert [each["words"] for each in entry["typed"]] == [two, one]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("open a draft PR", "open the draft PRs"),
        ("are there tests for loadFile?", "are there tests for readFile?"),
        ("never open draft PRs", "no draft PR, open"),
        ("let's fix 3", "let's fix 5"),
        ("make the header blue", "make the footer blue"),
        (
            "Bitte niemals direkt auf main pushen, immer einen Branch anlegen.",
            "Bitte niemals direkt auf main pushen, sondern einen Branch anlegen!",
        ),
    ],
)
def test_what_says_the_same_or_something_else_is_no_contradiction(
    one: str, two: str, home: Path, capsys: Capture
) -> None:
    """Two denials, questions, two tasks, words that are no opposites, and another language, of
    which English has hardly a word."""
    sessions(home, one, two, "open a draft", "a draft, open")
    assert "said in different ways" not in printed(capsys)
