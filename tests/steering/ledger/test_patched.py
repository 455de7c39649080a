"""A file is patched, and the test fails again with the same assertion: found in every frame.

Each runner's output is written as the tool prints it. What a patch moves without changing the
failure moves here, too: line numbers, times, addresses, seeds, and how many other tests pass."""

from __future__ import annotations

import pytest

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold
from gateway.core.monitors import Alarm
from gateway.core.step import Step
from gateway.steering.guidance.situation import READER
from steering_gateway_testing.planting import step

ROUNDS = 10
RUNNERS = {
    "pytest": (
        "pytest tests/test_sum.py",
        "=== test session starts ===\ncollected {total} items\n\ntests/test_sum.py F{dots}\n\n"
        "    def test_sum():\n>       assert total([1, 2]) == 3\nE       assert 4 == 3\n"
        "E        +  where 4 = total([1, 2])\n\ntests/test_sum.py:{line}: AssertionError\n"
        "=== short test summary info ===\nFAILED tests/test_sum.py::test_sum - assert 4 == 3\n"
        "=== 1 failed, {passed} passed in {time}s ===",
    ),
    "pytest -q": (
        "cd /w && python -m pytest -q 2>&1 | tail -5",
        "FAILED tests/test_sum.py::test_sum - AssertionError: assert 'a' == 'b'\n"
        "1 failed, {passed} passed, 2 warnings in {time}s",
    ),
    "unittest": (
        "python -m unittest tests.test_sum",
        "F{dots}\n======\nFAIL: test_sum (tests.test_sum.Sums.test_sum)\n------\n"
        'Traceback (most recent call last):\n  File "/w/tests/test_sum.py", line {line}, in '
        "test_sum\n"
        "    self.assertEqual(total([1, 2]), 3)\nAssertionError: 4 != 3\n\n------\n"
        "Ran {total} tests in {time}s\n\nFAILED (failures=1)",
    ),
    "script": (
        "python check.py",
        'Traceback (most recent call last):\n  File "/w/check.py", line {line}, in <module>\n'
        "    assert total([1, 2]) == 3, <Sum object at 0x7f{seed}a0>\n"
        "AssertionError: <Sum object at 0x7f{seed}a0>",
    ),
    "jest": (
        "npx jest sum",
        "FAIL src/sum.test.ts\n  \u25cf adds\n\n    expect(received).toBe(expected)\n\n"
        "    Expected: 3\n    Received: 4\n\n"
        "      at Object.<anonymous> (src/sum.test.ts:{line}:22)\n\n"
        "Tests:       1 failed, {passed} passed, {total} total\nTime:        {time} s",
    ),
    "vitest": (
        "npx vitest run",
        " FAIL  src/sum.test.ts > adds\nAssertionError: expected 4 to be 3 // Object.is equality\n"
        " \u276f src/sum.test.ts:{line}:22\n\n Test Files  1 failed (1)\n"
        "      Tests  1 failed | {passed} passed ({total})\n   Duration  {time}s",
    ),
    "mocha": (
        "npm test",
        "  {passed} passing ({seed}ms)\n  1 failing\n\n  1) adds:\n\n"
        "      AssertionError [ERR_ASSERTION]: 4 == 3\n      + expected - actual\n\n"
        "      at Context.<anonymous> (test/sum.js:{line}:14)\n\nnpm ERR! Test failed.",
    ),
    "go": (
        "go test ./sum/...",
        "--- FAIL: TestSum (0.0{n}s)\n    sum_test.go:{line}: got 4, want 3\nFAIL\n"
        "FAIL\texample.test/sum\t{time}s\nFAIL",
    ),
    "cargo": (
        "cargo test",
        "running {total} tests\ntest adds ... FAILED\n\nfailures:\n\n---- adds stdout ----\n\n"
        "thread 'adds' ({seed}) panicked at src/lib.rs:{line}:9:\n"
        "assertion `left == right` failed\n  left: 4\n right: 3\n\n"
        "test result: FAILED. {passed} passed; 1 failed; 0 ignored; finished in {time}s\n\n"
        "error: test failed, to rerun pass `--lib`",
    ),
    "maven": (
        "mvn -q test",
        "[ERROR] Tests run: {total}, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: {time} s\n"
        "[ERROR] SumTest.adds:{line} expected: <3> but was: <4>\n[ERROR] Failed to execute goal "
        "org.apache.maven.plugins:maven-surefire-plugin:3.2.5:test on project sum",
    ),
    "gradle": (
        "./gradlew test",
        "SumTest > adds FAILED\n"
        "    org.opentest4j.AssertionFailedError: expected: <3> but was: <4>\n"
        "        at SumTest.adds(SumTest.java:{line})\n\n{total} tests completed, 1 failed\n\n"
        "FAILURE: Build failed with an exception.\n\nBUILD FAILED in {n}s",
    ),
    "rspec": (
        "bundle exec rspec",
        "Failures:\n\n  1) Sum adds\n     Failure/Error: expect(total).to eq(3)\n\n"
        "       expected: 3\n            got: 4\n     # ./spec/sum_spec.rb:{line}:in `block'\n\n"
        "Finished in {time} seconds\n{total} examples, 1 failure\n\n"
        "rspec ./spec/sum_spec.rb:{line}\n\n"
        "Randomized with seed {seed}",
    ),
    "phpunit": (
        "vendor/bin/phpunit",
        "There was 1 failure:\n\n1) SumTest::testAdds\nFailed asserting that 4 is "
        "identical to 3.\n\n"
        "/w/tests/SumTest.php:{line}\n\nFAILURES!\n"
        "Tests: {total}, Assertions: {total}, Failures: 1.",
    ),
    "dotnet": (
        "dotnet test",
        "  Failed SumTests.Adds [{n} ms]\n  Error Message:\n   Assert.Equal() Failure\n"
        "Expected: 3\nActual:   4\n  Stack Trace:\n"
        "     at SumTests.Adds() in /w/SumTests.cs:line {line}\n"
        "Failed!  - Failed:     1, Passed:     {passed}, Skipped:     0, Total:     {total}",
    ),
    "ctest": (
        "ctest --output-on-failure",
        "Test project /w/build\n    Start 1: sum\n"
        "1: sum_test: /w/sum_test.c:{line}: main: Assertion `total(1, 2) == 3' failed.\n"
        "1/{total} Test #1: sum ...............Subprocess aborted***Exception:   {time} sec\n\n"
        "The following tests FAILED:\n\t  1 - sum (Subprocess aborted)\nErrors while running CTest",
    ),
    "exunit": (
        "mix test",
        "  1) test adds (SumTest)\n     test/sum_test.exs:{line}\n     Assertion with == failed\n"
        "     code:  assert total([1, 2]) == 3\n     left:  4\n     right: 3\n\n"
        "Finished in {time} seconds\n{total} tests, 1 failure\n\nRandomized with seed {seed}",
    ),
    "test tool": (
        "",
        '{{"passed": {passed}, "failed": 1, "success": false, "message": "expected 3 but got 4", '
        '"duration_ms": {seed}}}',
    ),
}
"""Runner: its command, "" for a tool of its own, and what it prints."""


def look(number: int) -> Step:
    """A look at another part of the patched file."""
    lines = [40 * number, 40 * number + 39]
    return step("view", {"path": "sum.py", "view_range": lines}, f"def part_{number}(): ...")


def patch(number: int) -> Step:
    """Another change of the file."""
    old = f"    step = {number}\n    return step"
    new = f"    step = {number + 1}\n    total += step\n    return step"
    arguments = {"file_path": "sum.py", "old_string": old, "new_string": new}
    return step("edit", arguments, "The file sum.py has been updated.")


def sed(number: int) -> Step:
    """Another change of the file, by a shell."""
    return step("bash", {"command": f"sed -i 's/a{number}/a{number + 1}/' sum.py"}, "")


def difference(number: int) -> Step:
    """What has changed so far."""
    return step("bash", {"command": "git diff"}, f"+ total_{number} += step_{number}")


BETWEEN = {
    "a patch": (patch,),
    "a look and a patch": (look, patch),
    "a shell's patch": (sed,),
    "two patches, and what changed": (patch, sed, difference),
}


def run(runner: str, number: int) -> Step:
    """One run of the tests, after so many patches."""
    command, text = RUNNERS[runner]
    printed = text.format(
        n=number + 1,
        line=17 + 3 * number,
        time=f"{0.31 + 0.07 * number:.2f}",
        passed=11 + number,
        total=12 + number,
        dots="." * (11 + number),
        seed=4711 + 977 * number,
    )
    if not command:
        return step("run_tests", {"target": "sum"}, printed)
    return step("bash", {"command": command}, printed)


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_same_assertion_after_each_patch_is_found(runner: str, between: str) -> None:
    """The alarm comes within ten rounds; it counts the runs of the tests, and not the patches."""
    fold = RunFold(Policy(), READER)
    alarms: list[Alarm] = []
    for number in range(ROUNDS):
        for each in BETWEEN[between]:
            fold.push(each(number))
        alarms += fold.push(run(runner, number)).readings.alarms
    assert alarms, f"{runner}, {between}"
    assert alarms[0].monitor == "test_repeat"
    assert alarms[0].count <= ROUNDS / 2
