"""What counts as a failure in a tool result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step import Step
from gateway.steering.evidence.action_facts import describe
from gateway.steering.evidence.outcomes import failure_line, is_empty, signature, without_volatile
from gateway.steering.evidence.results import is_pending, is_transient

FAILURES = [
    "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: bad value",
    "bash: line 3: javac: command not found",
    "/bin/sh: 1: cmake: not found",
    "ls: cannot access 'x': No such file or directory",
    "src/main.c:10:5: error: expected ';'",
    "Error: payment method not found",
    "error: could not compile `demo`",
    "npm ERR! missing script: build",
    "=========== 2 failed, 10 passed in 0.52s ===========",
    "FAILED (failures=1, errors=2)",
    "Tests run: 4, Failures: 1, Errors: 0, Skipped: 0",
    "test result: FAILED. 1 passed; 2 failed",
    "--- FAIL: TestParse (0.00s)",
    "BUILD FAILURE",
    "make: *** [all] Error 2",
    "exitcode: 1 (execution failed)\nCode output: ",
    "No replacement was performed, old_str `x` did not appear verbatim in /a.py.",
    "Your proposed edit has introduced new syntax error(s).",
    '{"error": "order not found"}',
    '{"success": false, "reason": "limit"}',
    "Segmentation fault (core dumped)",
    "fatal: not a git repository",
    "thread 'main' panicked at src/lib.rs:3:5",
]
FINE = [
    "",
    "ok",
    "0 errors, 0 warnings",
    "12 passed, 0 failed in 1.20s",
    "Compiled without errors",
    "Found no problems",
    "Tests run: 4, Failures: 0, Errors: 0, Skipped: 0",
    '{"order": 5, "error": null}',
    "Here's the result of running `cat -n` on a.py:\n     1\traise ValueError('failed')",
    "[File: /a/B.java (10 lines total)]\n1:throw new Exception();",
    "    1\tdef fail(error):\n    2\t    raise error",
    "class RetryError(Exception):\n    pass",
    "The handler catches every error and retries.",
    "exit code: 0",
    "Process finished with exit code 0",
    "### Page\n- Page URL: https://shop.test/\n- Console: 3 errors, 0 warnings",
]


@pytest.mark.parametrize("result", FAILURES)
def test_reports_what_tools_print_when_they_fail(result: str) -> None:
    """The line in which shells, compilers, runners and APIs report a failure is found."""
    assert failure_line(result) is not None


@pytest.mark.parametrize("result", FINE)
def test_does_not_take_counts_of_zero_code_or_prose_for_a_failure(result: str) -> None:
    """No errors, source code and talk about errors are not failures."""
    assert failure_line(result) is None


@pytest.mark.parametrize(
    "result", ["src/a.py:3: raise ValueError('x failed')", "x" * 700 + "\nError: in a document"]
)
def test_content_of_files_is_not_a_failure(result: str) -> None:
    """A tool that shows content fails only when it says so itself, in short."""
    assert failure_line(result, reads_content=True) is None


def test_a_reader_that_cannot_read_has_failed() -> None:
    """A short complaint of a reading tool is a failure."""
    line = failure_line("cat: a.txt: No such file or directory", reads_content=True)
    assert line == "cat: a.txt: No such file or directory"


def test_a_failure_at_the_end_of_a_long_log_is_found() -> None:
    """The tail of a long result is read, where runners print the verdict."""
    assert failure_line("building\n" * 5000 + "E   AssertionError: 3 != 4\n1 failed in 2s")


def test_the_exception_names_the_traceback() -> None:
    """The last line says what happened, not the traceback's headline."""
    result = "Traceback (most recent call last):\n  File 'x.py', line 1\nKeyError: 'a'"
    assert failure_line(result) == "KeyError: 'a'"


def test_the_count_of_failures_belongs_to_the_failure() -> None:
    """Two failures that end alike differ when one test less fails, and by the test that fails."""
    three = failure_line("E   assert 1 == 2\n3 failed, 1 passed in 0.1s")
    two = failure_line("E   assert 1 == 2\n2 failed, 2 passed in 0.1s")
    other = failure_line("E   KeyError: 'x'\n3 failed, 1 passed in 0.1s")
    assert len({three, two, other}) == 3


def test_signatures_ignore_what_changes_between_runs() -> None:
    """Timings, addresses, temporary paths and line counters do not tell two failures apart."""
    one = signature("1 failed in 0.52s at 0x7f12ab in /tmp/a1/x.py bash: line 12: javac")
    two = signature("1 failed in 1.98s at 0x7fffff in /tmp/zz/x.py bash: line 97: javac")
    assert one == two


def test_signatures_keep_how_much_failed() -> None:
    """Three failures and one failure are different outcomes."""
    assert signature("3 failed, 1 passed in 1.0s") != signature("1 failed, 3 passed in 1.0s")


@pytest.mark.parametrize("result", ["", "[]", "{}", "No matches found for 'x'", "null"])
def test_answers_that_carry_nothing(result: str) -> None:
    """Blank answers, empty lists and "nothing found" are empty."""
    assert is_empty(result)


def test_status_answers() -> None:
    """A running job is pending, a refusal that asks to come back is transient."""
    assert is_pending("running", frozenset({"running"}))
    assert is_transient("429", frozenset({"429"}))
    assert not is_pending("x" * 500, frozenset({"running"}))
    assert not is_transient("done", frozenset({"done"}))


@given(st.text(max_size=3000), st.booleans())
def test_any_text_is_read_without_an_exception(result: str, reads: bool) -> None:
    """Whatever a tool returns, reading it does not raise, and the line comes from the text."""
    line = failure_line(result, reads_content=reads)
    assert line is None or len(line) <= 300
    assert len(without_volatile(result)) <= len(result) + result.count("/")
    is_empty(result)


@pytest.mark.parametrize(
    ("result", "failure"),
    [
        (
            "[INFO] Building demo\n[ERROR] COMPILATION ERROR :\n[ERROR] /a/Foo.java:[12,8] cannot"
            " find symbol\n[INFO] BUILD FAILURE\n[ERROR] To see the full stack trace, re-run\n"
            "[ERROR] [Help 1]",
            "cannot find symbol",
        ),
        ("[2024-01-05 10:00:01] ERROR could not connect: refused", "could not connect"),
        (
            "[2024-01-05T10:00:00Z] up\nTraceback (most recent call last):\nValueError: x",
            "ValueError",
        ),
        ("2024-05-01 10:00:00,123 ERROR [main] com.foo.Bar - boom", "boom"),
        (
            "[1/4] FROM python\n[3/4] RUN pip\nERROR: failed to solve: exit code: 1",
            "failed to solve",
        ),
        ("[+] Building 2s (7/9)\n => ERROR [5/5] RUN make\n0.3 make: *** No rule", "No rule"),
        ("FAILURE: Build failed with an exception.\n\n* What went wrong:\nno disk", "Build failed"),
        ("src/a.ts(12,5): error TS2322: Type 'x' is not assignable", "not assignable"),
        ("src/a.ts:12:5 - error TS2322: Type 'x' is not assignable\n\nFound 1 error", "assignable"),
        ("./main.go:12:2: undefined: foo\nFAIL\texample.com/x [build failed]", "undefined: foo"),
        ("{starting job}\nError: cannot open file", "cannot open file"),
    ],
)
def test_logs_and_builds_report_failures(result: str, failure: str) -> None:
    """What begins with a bracket is JSON only if it goes on like JSON."""
    assert failure in (failure_line(result) or "")


@pytest.mark.parametrize(
    "result",
    [
        '[{"id": 1, "note": "ERROR 5"}]',
        "[1, 2, 3]",
        '{"error": null, "items": []}',
        "[INFO] BUILD SUCCESS\n[INFO] Tests run: 5, Failures: 0, Errors: 0, Skipped: 0",
        "[100%] Built target app",
    ],
)
def test_json_and_good_logs_report_none(result: str) -> None:
    """Data with a word of failure in it, and builds that passed."""
    assert failure_line(result) is None


def test_ids_of_two_digits_are_one_failure_and_counts_are_not() -> None:
    """Another user is the same failure; one failing test less is progress."""
    assert signature("KeyError: user 12") == signature("KeyError: user 47")
    assert signature("a.ts(12,5): error: x") == signature("a.ts(14,7): error: x")
    assert signature("12 failed, 30 passed") != signature("11 failed, 31 passed")
    assert signature("assert total == 12") != signature("assert total == 15")


@pytest.mark.parametrize(
    "text",
    [
        "Fehler: Verbindung zur Datenbank getrennt",
        "cat: notiz.txt: Datei nicht gefunden",
        "Konnte nicht auf das Konto zugreifen",
        "Impossible de charger le module de paie",
        "Erreur : la commande est introuvable",
        "No se pudo abrir el archivo de ventas",
        "La reserva A7 no existe",
        "无法打开文件: 没有权限",
        "找不到订单 W7",
    ],
)
def test_failures_are_heard_in_other_languages(text: str) -> None:
    """German, French, Spanish and Chinese messages of tools."""
    assert failure_line(text) is not None


@pytest.mark.parametrize(
    ("thought", "doubts"),
    [
        ("Vielleicht liegt es am Cache, ich bin nicht sicher.", 2),
        ("C'est peut-être le cache, je crois.", 2),
        ("Quizás sea la caché, no estoy seguro.", 2),
        ("也许是缓存的问题, 我不确定", 2),
    ],
)
def test_doubt_is_heard_in_other_languages(thought: str, doubts: int) -> None:
    """Words and phrases of hedging are data by language; Chinese is counted without blanks."""
    facts = describe(Step(index=0, thought=thought))
    assert facts.hedges == doubts
    assert facts.words >= 5
