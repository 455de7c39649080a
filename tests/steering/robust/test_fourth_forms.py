"""The fourth set of planted forms: other causes, other tools; every second one was held back."""

from __future__ import annotations

from collections.abc import Mapping

from tests.steering.robust.test_third_forms import SEEDS, first_signs
from tests.steering.robust.third_forms import Call, Draw, Form, Turn, browser

PIPED = ("", " 2>&1", " | tail -20", " --verbose", " || true", " -q", " 2>&1 | tail", " --debug")
DENIED = "deploy@10.0.0.7: Permission denied (publickey)."
IN_USE = "Error: listen EADDRINUSE: address already in use :::3000"
HITS = "\n".join(
    f"{n}. {title} - https://docs.test/{n}"
    for n, title in enumerate(("Session stores", "Cookies and proxies", "Login behind a balancer"))
)
PROTECTED = (
    "remote: error: GH006: Protected branch update failed for refs/heads/main.\n"
    "! [remote rejected] main -> main (protected branch hook declined)\n"
    "error: failed to push some refs to 'origin'"
)
LOG = "\n".join(f"09:1{n}:02 worker {n} gave up: queue is closed" for n in range(9))
CONFIG = "\n".join(f"{key}_limit: {n * 7 + 3}" for n, key in enumerate("abcdefghijklmno"))
MADE = "I will look for it in another way."
REVISED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). To tell you how to proceed, the "
    "user said:\n{words}"
)


def gemini(command: str, output: str, code: int = 0) -> Call:
    """A command as Gemini CLI reports it."""
    report = (
        f"Command: {command}\nDirectory: (root)\nOutput: {output or '(empty)'}\nError: (none)\n"
        f"Exit Code: {code}\nSignal: 0\nBackground PIDs: (none)\nProcess Group PGID: 4{len(output)}"
    )
    return ("", "run_shell_command", {"command": command, "description": "Run it"}, report)


def _lint(d: Draw, i: int, path: str, code: int) -> Call:
    found = f"{path}\n  {9 + i}:11  error  Unexpected 'else' after 'return'  no-else-return"
    return d.run(f"npx eslint {path}", found if code else "", code)


def _switch(d: Draw, i: int) -> list[Turn]:
    old, new = ("false", "true") if i % 2 else ("true", "false")
    return [
        d.edit("/home/dev/app/config.toml", f"eager = {old}", f"eager = {new}"),
        d.run("make smoke", "smoke: FAILED: no answer from worker\nmake: *** [smoke] Error 1", 2),
    ]


LOOPS: Mapping[str, Form] = {
    "keys tried out": lambda d, i: [
        d.run(f"ssh -i ~/.ssh/{d.word(i)} deploy@10.0.0.7 uptime", DENIED, 255)
    ],
    "a port that stays taken": lambda d, i: [
        d.run(
            f"{('npm start', 'node server.js', 'npx serve', 'yarn dev')[i % 4]}{PIPED[i % 8]}",
            IN_USE,
            1,
        )
    ],
    "a rule against the formatter": lambda d, i: [
        d.edit(f"/home/dev/app/src/{d.topic(0)}.ts", d.text(i, 1), d.text(i + 300, 1)),
        d.run("npm run format", f"src/{d.topic(0)}.ts 31ms"),
        d.run(
            f"npx eslint src/{d.topic(0)}.ts",
            f"src/{d.topic(0)}.ts\n  9:11  error  Unexpected 'else' after 'return'",
            1,
        ),
    ],
    "searches that find the same pages": lambda d, i: [
        (MADE, "WebSearch", {"query": f"{d.topic(0)} lost behind {d.word(i)} proxy"}, HITS)
    ],
    "a dead job polled": lambda d, i: [
        (
            "",
            "BashOutput",
            {"bash_id": f"b{d.number}"},
            "<status>failed</status>\n<exit_code>1</exit_code>\n<stderr>\nnone\n</stderr>",
        )
    ],
    "a pipeline run again": lambda d, i: [
        d.run(f"gh run rerun 81{d.number} --failed", ""),
        d.run(
            f"gh run view 81{d.number}",
            f"X main ci 81{d.number}\nX test in 41s\n  X Run make check\nexit status 1",
            1,
        ),
    ],
    "heads of a migration": lambda d, i: [
        d.run(
            f"alembic {('upgrade head', 'revision -m x', 'upgrade +1', 'stamp head')[i % 4]}"
            f"{PIPED[i % 8]}",
            "FAILED: Multiple head revisions are present",
            255,
        )
    ],
    "versions tried out": lambda d, i: [
        d.edit("/home/dev/app/package.json", f'"react": "18.{i}.0"', f'"react": "18.{i + 1}.0"'),
        d.run(
            "npm install",
            "npm error code ERESOLVE\nnpm error ERESOLVE unable to resolve "
            "dependency tree\nnpm error Could not resolve dependency: peer chart@2",
            1,
        ),
    ],
    "a form that refuses": lambda d, i: [
        browser("type", {"ref": "e12", "text": f"{i + 3}.0{i % 9 + 1}.26"}, "### Result\nTyped"),
        browser(
            "click",
            {"element": "Next", "ref": "e19"},
            "### Result\nPlease enter a valid date. [ref=e21]",
        ),
    ],
    "waited for what never comes": lambda d, i: [
        browser(
            "wait_for",
            {"text": f"{d.topic(i)} saved"},
            "### Error\nTimeoutError: locator.waitFor: Timeout 30000ms exceeded.",
        )
    ],
    "a module that is missing": lambda d, i: [
        d.run(
            f"python scripts/{d.word(i)}.py",
            'Traceback (most recent call last):\n  File "x", '
            "line 1, in <module>\nModuleNotFoundError: No module named 'yaml'",
            1,
        )
    ],
    "a server that has gone": lambda d, i: [
        (
            "",
            "mcp__linear__get_issue",
            {"id": f"ENG-{d.number + i}"},
            "MCP error -32000: Connection closed",
        )
    ],
    "a folder that is not there": lambda d, i: [
        d.run(
            f"cd app/web && {('ls', 'npm test', 'npm run build', 'cat package.json')[i % 4]}",
            "bash: line 1: cd: app/web: No such file or directory",
            1,
        )
    ],
    "cells without their data": lambda d, i: [
        (
            "",
            "execute_cell",
            {"code": f"df['{d.topic(i)}'].{d.word(i)}()"},
            "NameError: name 'df' is not defined",
        )
    ],
    "a longer end of one log": lambda d, i: [d.run(f"tail -n {20 + 10 * i} app.log", LOG)],
    "one file by other programs": lambda d, i: [
        d.run(
            f"{('cat', 'head -40', 'less', 'grep .', 'tail -40', 'more')[i % 6]} limits.yaml",
            CONFIG,
        )
    ],
    "made and thrown away": lambda d, i: [
        d.edit(f"/home/dev/app/src/{d.topic(0)}.go", "return nil", "return err"),
        d.run("go build ./...", f"src/{d.topic(0)}.go:9:2: undefined: err", 1),
        d.run(f"git checkout -- src/{d.topic(0)}.go", ""),
    ],
    "a switch to and fro": _switch,
    "a folder that is not ours": lambda d, i: [
        d.run(
            f"{('touch', 'mkdir', 'cp app.conf', 'tee')[i % 4]} /etc/app/{d.word(i)}.conf",
            f"cannot write '/etc/app/{d.word(i)}.conf': Permission denied",
            1,
        )
    ],
    "tests of no name": lambda d, i: [
        d.run(f"pytest -q -k {d.word(i)}_{d.topic(i)}", "41 deselected in 0.12s", 5)
    ],
    "a commit that the hook refuses": lambda d, i: [
        d.run(
            f"git commit -m 'Change the {d.topic(i)}'",
            "Trim trailing whitespace....Failed\n- hook id: trailing-whitespace\n- exit code: 1",
            1,
        )
    ],
    "a branch that is protected": lambda d, i: [
        d.run(
            f"git push {('origin main', '-u origin main', '--no-verify', '-f')[i % 4]}"
            f"{PIPED[i % 8]}",
            PROTECTED,
            1,
        )
    ],
    "gone back to the start": lambda d, i: [
        d.run("cat README.md", "A tool for shops. Install it with pip."),
        d.run("ls src", "main.py"),
        d.read("/home/dev/app/src/main.py", 1, 30, 77),
    ],
    "begun and put back": lambda d, i: [
        d.plan([("Repair it", ("in_progress", "pending")[i % 2]), ("Test it", "pending")])
    ],
}


def _on_purpose(d: Draw, i: int) -> list[Turn]:
    """Other tests pass, and what reproduces the fault for a report fails as it is meant to."""
    others = [
        d.run(f"pytest -q tests/test_{d.word(i * 3 + k)}.py", f"{i + k + 2} passed in 0.{k}1s")
        for k in range(3)
    ]
    fault = d.run("pytest -q fault.py", "FAILED fault.py::test_it[..] - assert 0\n1 failed", 1)
    return [*others, fault]


def _working(d: Draw, i: int) -> list[Turn]:
    """Four workers are waited for at once."""
    head = f"Chunk ID: {i:06x}\nWall time: 30.0021 seconds\nProcess running with session ID "
    return [
        [
            (
                "",
                "exec_command",
                {"cmd": f"crew wait {d.word(i * 4 + k)}", "workdir": "/home/dev/app"},
                f"{head}{1000 + i * 4 + k}\nOriginal token count: 0\nOutput:\n",
            )
            for k in range(4)
        ]
    ]


INNOCENTS: Mapping[str, Form] = {
    "a pipeline watched": lambda d, i: [
        d.run(f"sleep 60 && gh run view 7{d.number}", f"* main ci 7{d.number}\n* test (ID 1) {i}m")
    ],
    "a test run watched": lambda d, i: [
        (
            "",
            "TaskOutput",
            {"task_id": f"t{d.number}", "block": False},
            f"<status>running</status>\n<output>\ntest_{d.word(i)} ok {i}\n</output>",
        )
    ],
    "one of three is missing": lambda d, i: [
        [
            d.read(f"/home/dev/app/{d.word(i)}_{k}.py", 1, 9, i * 3 + k)
            if k
            else (
                "",
                "Read",
                {"file_path": f"/home/dev/app/{d.word(i)}_0.py"},
                "<tool_use_error>File does not exist.</tool_use_error>",
            )
            for k in range(3)
        ]
    ],
    "folders among the files": lambda d, i: [
        (
            "",
            "Read",
            {"file_path": f"/home/dev/app/{d.topic(i)}"},
            "EISDIR: illegal operation on a directory, read",
        ),
        d.run(f"ls {d.topic(i)}", f"{d.word(i)}.py {d.word(i + 3)}_{i}.py"),
    ],
    "a network that comes and goes": lambda d, i: [
        d.run(f"npm view {d.topic(i)}-{d.word(i)} version", "npm error code ECONNRESET", 1),
        d.run("sleep 30", ""),
        d.run(f"npm view {d.topic(i)}-{d.word(i)} version", f"{i}.{i + 2}.1"),
    ],
    "issues, page by page": lambda d, i: [
        d.run(
            f"gh api 'repos/x/y/issues?page={i + 1}' --jq '.[].title'",
            "\n".join(f"{d.word(i + k)} {d.topic(i * 2 + k)} {i * 10 + k}" for k in range(6)),
        )
    ],
    "doubts, and short hits": lambda d, i: [
        d.run(
            f"rg -n {d.topic(i)}_{d.word(i)}",
            f"src/{d.word(i + 1)}.py:{i + 4}: {d.text(i, 1)}",
            thought=f"Hmm, maybe {d.topic(i)} is set by {d.word(i)}? Not sure, perhaps not.",
        )
    ],
    "one line in many files": lambda d, i: [
        d.edit(f"/home/dev/app/pkg/{d.word(k)}_{k}.go", "log.Print(", "slog.Info(")
        for k in range(i * 6, i * 6 + 6)
    ],
    "measured with two settings": lambda d, i: [
        d.edit("/home/dev/app/run.yaml", f"threads: {2 ** (i % 2)}", f"threads: {2 - i % 2}"),
        d.run("make bench", f"{900 + 37 * i} requests/s, p99 {4 + i} ms"),
    ],
    "bisected by a test": lambda d, i: [
        d.run(
            f"git bisect {('good', 'bad')[i // 2 % 2]}",
            f"Bisecting: {500 >> i} revisions left\n[{i * 7919:07x}] {d.word(i)} {d.topic(i)}",
        ),
        d.run(
            "pytest -q tests/test_cart.py",
            "1 failed in 0.2s" if i // 2 % 2 else "1 passed",
            i // 2 % 2,
        ),
    ],
    "a fault kept for the report": _on_purpose,
    "the linter, file by file": lambda d, i: [
        _lint(d, i, f"src/{d.word(i)}.ts", 1),
        d.edit(f"/home/dev/app/src/{d.word(i)}.ts", d.text(i, 1), d.text(i + 70, 1)),
        _lint(d, i, f"src/{d.word(i)}.ts", 0),
    ],
    "a compiler listened to": lambda d, i: [
        (
            "",
            "write_stdin",
            {"session_id": d.number, "chars": "", "yield_time_ms": 30000},
            f"Chunk ID: {i:06x}\nWall time: 30.0 seconds\nProcess running with session ID "
            f"{d.number}\nOutput:\n   Compiling {d.word(i)} v0.{i}.1",
        )
    ],
    "workers waited for at once": _working,
    "answers to threads": lambda d, i: [
        d.run(
            f"gh api repos/x/y/pulls/8/comments/{90 + i}/replies -f body='Fixed: {d.topic(i)}'",
            f'{{"id": {4400 + i}, "state": "posted"}}',
        )
    ],
    "one question to many copies": lambda d, i: [
        d.run(f"git -C ../copies/{d.word(i)}_{i} status --short", "")
    ],
    "names that nobody uses": lambda d, i: [
        ("", "Grep", {"pattern": f"{d.word(i)}_{d.topic(i)}", "path": "src"}, "No matches found")
    ],
    "links that answer": lambda d, i: [
        d.run(f"curl -sI https://{d.topic(i)}.test/{d.word(i)} | head -1", "HTTP/2 200")
    ],
    "commands of Gemini": lambda d, i: [
        gemini(f"git add src/{d.word(i)}.py", ""),
        gemini(
            f"git commit -m {d.topic(i)}", f"[main {i * 7919:07x}] {d.topic(i)}\n 1 file changed"
        ),
        gemini(f"wc -l src/{d.word(i)}.py", f"{i * 31 + 7} src/{d.word(i)}.py"),
    ],
    "programs that end well": lambda d, i: [
        (
            "",
            "execute",
            {"command": f"node tools/{d.word(i)}.js {i}"},
            f'{{"metadata": {{"exit_code": 0}}, "output": "{d.topic(i)}: {i + 1} errors gone"}}',
        )
    ],
    "a training listened to": lambda d, i: [
        d.run("sleep 120; tail -1 train.log", f"epoch {i} loss {3 / (i + 1):.3f} lr 3e-4")
    ],
    "places of one long file": lambda d, i: [
        d.edit("/home/dev/app/src/app.css", d.text(i * 2, 2), d.text(i * 2 + 400, 2)),
        d.edit("/home/dev/app/plans/plan.md", d.text(i, 1), d.text(i + 800, 1)),
    ],
    "a plan in plan mode": lambda d, i: [
        (
            "",
            "ExitPlanMode",
            {"plan": f"# {d.topic(i)}\n{d.text(i, 4)}"},
            REVISED.format(words=f"put {d.word(i)} first, then {d.topic(i + 1)}"),
        ),
        d.edit("/home/dev/app/plans/plan.md", d.text(i, 1), d.text(i + 800, 2)),
    ],
    "questions with choices": lambda d, i: [
        (
            "",
            "AskUserQuestion",
            {"questions": [{"question": f"Which {d.topic(i)}?"}]},
            REVISED.format(words=f"neither: take {d.word(i)}"),
        )
    ],
}


def test_the_fourth_set_is_found_and_left_alone() -> None:
    """Of 24 loops 21 raise an alarm within 6 repetitions; of 24 innocents only the test that is
    run again and again although it is known to fail."""
    found = [first_signs(form, seed)[0] for form in LOOPS.values() for seed in SEEDS]
    assert (len(LOOPS), len(INNOCENTS)) == (24, 24)
    assert sum(each is not None and each <= 6 for each in found) >= 0.89 * len(found)
    signs = {(name, s): first_signs(form, s) for name, form in INNOCENTS.items() for s in SEEDS}
    alarmed = {name for (name, _), (alarm, _) in signs.items() if alarm is not None}
    assert alarmed <= {"a fault kept for the report"}
    slow = {(name, round_) for (name, _), (_, round_) in signs.items() if round_ is not None}
    assert {name for name, _ in slow} <= {"a fault kept for the report"}
