"""The third set of planted forms, in the tools of four clients: what is found, what is left alone.

Half of it, every second form, was held back until the monitors were done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from steering_gateway_testing.planting import Signs, signs_of
from tests.steering.robust.third_forms import (
    CLIENTS,
    Call,
    Draw,
    Form,
    Turn,
    browser,
    snapshot,
    sql,
)

SUMMARY = (
    "This session is being continued from a previous conversation that ran out of context. The "
    "conversation is summarized below:\nAnalysis: the user asked to repair {topic}. Pending: find "
    "out why the test of {topic} fails.\nPlease continue with the last task."
)
HANDED_ON = (
    "Another language model started to solve this problem and produced a summary of its thinking "
    "process. Use it to build on the work: the failing part is {topic}; nothing is repaired yet."
)
WAYS = (
    "Fix the {t} handler, add a test for {t}, update the docs of {t}",
    "Repair the handler of {t}, write a test covering {t}, revise the {t} docs",
    "Correct {t} handling, cover {t} by a test, bring the docs for {t} up to date",
    "Handle {t} correctly, test {t}, document {t}",
    "Make the {t} handler right, create the {t} test, adjust documentation on {t}",
)
PROMISES = (
    "I will first restructure the {t} module, then add tests, and finally update the docs. Shall "
    "I start with the {t} module?",
    "The plan: restructure {t} first, after that tests, documentation at the end. Ready to begin "
    "with {t} whenever you say so.",
    "Here is how I will proceed: 1. the {t} module is restructured, 2. tests are added, 3. docs "
    "are updated. I will begin with the {t} module next.",
    "To sum up, I am going to restructure the module {t}, add the tests and then update the docs. "
    "Let me know and I will get started.",
)
GO_AHEAD = ("yes, go ahead", "ok do it", "please start", "go on then", "yes. do it now", "go ahead")


def _todo(d: Draw, i: int, at: int = 0) -> Call:
    steps = WAYS[i % len(WAYS)].format(t=d.topic(at)).split(", ")
    return d.plan([(text, "pending") for text in steps], "Let me put the plan in better words.")


def _again(d: Draw, first: str) -> list[Turn]:
    """What was looked at before the compaction, from the beginning."""
    t = d.topic(0)
    return [
        (first.format(topic=t),),
        d.run("git status --short", f" M src/{t}.py", thought="I will look at the state first."),
        d.read(f"/home/dev/app/src/{t}.py", 1, 30, 1),
        d.run(f"pytest -q tests/test_{t}.py", f"FAILED tests/test_{t}.py::test_it - KeyError", 1),
    ]


def _codex_stdin(d: Draw, chars: str, output: str) -> Call:
    head = f"Chunk ID: {d.rng.randrange(16**6):06x}\nWall time: 1.0021 seconds\n"
    running = f"Process running with session ID {d.number}\nOutput:\n{output}"
    arguments = {"session_id": d.number, "chars": chars, "yield_time_ms": 1000}
    return ("", "write_stdin", arguments, head + running)


LOOPS: Mapping[str, Form] = {
    "other queries at a rate limit": lambda d, i: [
        (
            "",
            "mcp__search__web_search",
            {"query": f"{d.topic(i)} {d.word(i)} documentation"},
            '{"error": {"code": 429, "message": "Rate limit exceeded. Try again in 60 seconds."}}',
        )
    ],
    "other endpoints at a quota": lambda d, i: [
        d.run(
            f"curl -s https://api.shop.test/v2/{d.topic(i)}",
            '{"message": "API rate limit exceeded for 10.0.0.4, retry after 60 s", "status": 429}',
        )
    ],
    "image tags tried out": lambda d, i: [
        d.run(
            f"kubectl set image deployment/{d.topic(0)} app=registry.test/{d.topic(0)}:"
            f"{('latest', 'v1', '1.0', 'stable', 'main', 'v1.0.0', '1', 'prod')[i % 8]}",
            f"deployment.apps/{d.topic(0)} image updated",
        ),
        d.run(
            f"kubectl get pods -l app={d.topic(0)}",
            "NAME READY STATUS RESTARTS AGE\n"
            f"{d.topic(0)}-{d.rng.randrange(16**8):08x}-x{i}k 0/1 ImagePullBackOff 0 {20 + i}s",
        ),
    ],
    "chart values tried out": lambda d, i: [
        d.run(
            f"helm upgrade {d.topic(1)} ./chart --set resources.limits.memory={128 * (i + 1)}Mi",
            f'Release "{d.topic(1)}" has been upgraded. Happy Helming!\nREVISION: {i + 3}',
        ),
        d.run(
            "kubectl get pods",
            "NAME READY STATUS RESTARTS AGE\n"
            f"{d.topic(1)}-{d.rng.randrange(16**8):08x}-p{i}z 0/1 "
            f"CrashLoopBackOff {i + 2} {i + 1}m",
        ),
    ],
    "a todo list in other words": lambda d, i: [_todo(d, i)],
    "a plan in other words, with a look": lambda d, i: [
        _todo(d, i, 1),
        d.run("git status --short", ""),
    ],
    "overlapping parts of a file": lambda d, i: [
        d.read(f"/home/dev/app/src/{d.topic(0)}.py", 100 + (i * 37) % 60, 60, 2)
    ],
    "overlapping parts by sed": lambda d, i: [
        d.run(
            f"sed -n '{1 + (i * 13) % 40},{90 + (i * 7) % 30}p' src/{d.topic(2)}.go",
            "\n".join(d.text(3000 + n, 1) for n in range(1 + (i * 13) % 40, 91 + (i * 7) % 30)),
        )
    ],
    "plans while told to go ahead": lambda d, i: [
        (PROMISES[i % 4].format(t=d.topic(0)), GO_AHEAD[i % 6])
    ],
    "plans approved, not begun": lambda d, i: [
        (
            "",
            "ExitPlanMode",
            {"plan": f"# Plan for {d.topic(0)}\n{WAYS[i % 5].format(t=d.topic(0))}"},
            "User has approved your plan. You can now start coding. Start with updating your todo "
            "list if applicable",
        ),
        (PROMISES[i % 4].format(t=d.topic(0)), GO_AHEAD[(i + 1) % 6]),
    ],
    "one button by other selectors": lambda d, i: [
        browser(
            "click",
            {"element": f"{('Save', 'Submit', 'Confirm')[i % 3]} button", "ref": f"e{40 + i * 3}"},
            f"### Error\nError: locator.click: Timeout 5000ms exceeded. Element e{40 + i * 3} is "
            "not visible: a dialog covers it",
        )
    ],
    "a value by other scripts": lambda d, i: [
        browser(
            "evaluate",
            {
                "function": "() => document.querySelector('"
                + ("#total", ".total", "[data-total]", "td.total", "span.sum", "#sum")[i % 6]
                + "')?.textContent"
            },
            "### Result\nnull",
        )
    ],
    "begun again after each compaction": lambda d, i: _again(d, SUMMARY),
    "begun again after each hand-over": lambda d, i: _again(d, HANDED_ON),
    "guessed columns": lambda d, i: [
        sql(
            f"SELECT {d.word(i)}_id, total FROM {d.topic(0)} LIMIT 5",
            f'ERROR: column "{d.word(i)}_id" does not exist\nLINE 1: SELECT {d.word(i)}_id, total',
        )
    ],
    "no rows in other words": lambda d, i: [
        sql(
            f"SELECT id FROM customers WHERE {('name', 'lower(name)', 'trim(name)')[i % 3]} "
            f"{('=', 'LIKE', 'ILIKE')[i // 3 % 3]} '{d.word(0)} gmbh'",
            "[]",
        )
    ],
    "edits that leave the failure": lambda d, i: [
        d.edit(f"src/{d.topic(0)}.py", f"x = {i}", f"x = {i + 1}", f"Perhaps {d.word(i)} is it."),
        d.run(
            f"python -m pytest tests/test_{d.topic(0)}.py -q",
            f"F\nE       assert 3 == 4\nFAILED tests/test_{d.topic(0)}.py::test_sum - assert 3 == 4"
            f"\n1 failed in 0.{d.rng.randrange(10, 99)}s",
            1,
        ),
    ],
    "edits that leave the compiler's error": lambda d, i: [
        d.edit(f"src/{d.topic(1)}.ts", f"let a{i} = 1", f"let a{i}: any = 1"),
        d.run(
            "pnpm tsc --noEmit",
            f"src/{d.topic(1)}.ts({30 + i},7): error TS2345: Argument of type 'string' is not "
            "assignable to parameter of type 'Id'.",
            2,
        ),
    ],
    "keys to a program that hangs": lambda d, i: [
        _codex_stdin(d, ("q\n", "\x03", "exit\n", "n\n", ":q\n", "\x1b")[i % 6], "(END)")
    ],
    "a finished shell asked": lambda d, i: [
        (
            "",
            "BashOutput",
            {"bash_id": f"b{d.number}"},
            "<status>completed</status>\n\n<exit_code>0</exit_code>\n\n<stdout>\nbuilt in 4.1s\n"
            f"</stdout>\n\n<timestamp>2026-02-03T10:0{i % 10}:11.{100 + i}Z</timestamp>",
        )
    ],
    "pushed again": lambda d, i: [
        d.run(
            f"git push {('', '-u ', '--no-verify ', '--verbose ')[i % 4]}origin {d.word(0)}",
            f"To github.test:dev/app.git\n ! [rejected] {d.word(0)} -> {d.word(0)} "
            "(non-fast-forward)\nerror: failed to push some refs to 'github.test:dev/app.git'",
            1,
        )
    ],
    "patches that do not fit": lambda d, i: [
        (
            "",
            "apply_patch",
            {
                "input": f"*** Begin Patch\n*** Update File: src/{d.topic(0)}.rs\n@@ fn "
                f"{d.word(i)}\n-    let a = {i};\n+    let b = {i};\n*** End Patch"
            },
            "apply_patch verification failed: Failed to find expected lines in "
            f"src/{d.topic(0)}.rs:\n    let a = {i};",
        )
    ],
    "arguments that are refused": lambda d, i: [
        (
            "",
            "mcp__linear__create_issue",
            {"title": f"{d.topic(0)} is slow", ("team", "teamName", "group")[i % 3]: d.word(i)},
            "MCP error -32602: Invalid arguments for tool create_issue: teamId is required",
        )
    ],
    "a task that nobody knows": lambda d, i: [
        (
            "",
            "TaskOutput",
            {"task_id": f"{d.word(i)[:3]}{i}", "block": True},
            f"<tool_use_error>No task found with ID: {d.word(i)[:3]}{i}</tool_use_error>",
        )
    ],
    "a helper asked in other words": lambda d, i: [
        (
            "",
            "Task",
            {
                "subagent_type": "Explore",
                "prompt": ("Find where {t} is configured", "Locate the configuration of {t}")[
                    i % 2
                ].format(t=d.topic(0))
                + ("", " in this repository", ", thoroughly", " please")[i // 2 % 4],
            },
            f"I searched the repository and found no configuration of {d.topic(0)}.",
        )
    ],
    "a symbol that is not there": lambda d, i: [
        (
            "",
            "Grep",
            {
                "pattern": ("{t}Handler", "class {t}Handler", "{t}_handler", "def {t}_handler")[
                    i % 4
                ].format(t=d.topic(0)),
                "path": ("src", ".", "src/app", "lib")[i // 2 % 4],
            },
            "No matches found",
        )
    ],
    "restarted, and still broken": lambda d, i: [
        d.run("pm2 restart web", f"[PM2] [web](0) ok, pid {4000 + 13 * i}"),
        d.run(
            f"curl -s -o /dev/null -w '%{{http_code}}' localhost:3000/{d.topic(0)}",
            "500",
            thought="Is it up now?",
        ),
    ],
    "a lock that stays": lambda d, i: [
        d.run(
            f"terraform apply -auto-approve {('', '-refresh=false', '-parallelism=1')[i % 3]}",
            "Error: Error acquiring the state lock\nConditionalCheckFailedException\nLock Info: "
            f"ID: {d.rng.randrange(16**8):08x}-1c2d-4e5f-8a9b-{d.rng.randrange(16**12):012x}",
            1,
        )
    ],
    "keys that leave the page": lambda d, i: [
        browser("press_key", {"key": ("Enter", "Escape", "Tab", "PageDown")[i % 4]}, "ok"),
        browser("snapshot", {}, snapshot(d.topic(0), [f"dialog {d.word(0)}", "button Close"])),
    ],
    "every page is the login": lambda d, i: [
        browser(
            "navigate",
            {"url": f"https://app.test/{d.topic(i)}"},
            snapshot("login", ["heading Sign in", "textbox Email", "button Continue"]),
        )
    ],
}
"""No news, no effect, nothing done."""


DOUBTS = (
    "Hmm, maybe the {w} path is the one. It might be that {t} is called twice, I am not sure.",
    "Wait, actually this could be the {w} case. Perhaps {t} is only likely to be involved.",
    "It seems that {w} is probably unrelated. Let me think about what {t} might do instead.",
    "Possibly {t} writes first. I guess {w} appears later, it is unclear. I will read it.",
)
REMARKS = (
    "the section on {w} is too long, please shorten it",
    "add something about {w}, and name the owner",
    "I would move {w} before {t}",
    "what about {t}? mention it next to {w}",
)
NOT_FOUND = "<tool_use_error>String to replace not found in file.\nString: {old}</tool_use_error>"
APPROVALS = ("yes", "go ahead", "ok, next", "do it", "sounds good, continue")


def _red(d: Draw, test: str, reason: str) -> Call:
    failed = f"E       {reason}\nFAILED {test} - {reason}\n1 failed in 0.31s"
    return d.run(f"pytest -q {test}", failed, 1)


def _green(d: Draw, test: str, i: int) -> Call:
    return d.run(f"pytest -q {test}", f".\n1 passed in 0.{20 + i}s")


def _productive(d: Draw, i: int) -> list[Turn]:
    """Twenty calls that each bring something."""
    turns: list[Turn] = []
    for k in range(i * 5, i * 5 + 5):
        path = f"src/{d.topic(k)}/{d.word(k // 3)}_{k}.py"
        turns += [
            d.run(f"rg -n 'def {d.word(k)}' src", f"{path}:{k + 4}: def {d.word(k)}_{k}():"),
            d.read(f"/home/dev/app/{path}", 1, 12, k + 50),
            d.edit(f"/home/dev/app/{path}", d.text(k, 1), d.text(k + 900, 1)),
            d.run(f"pytest -q tests/test_{d.word(k)}_{k}.py", f"{k + 3} passed in 1.{k}s"),
        ]
    return turns


def _parallel(d: Draw, i: int) -> list[Turn]:
    """Twenty calls in rounds of four."""
    reads = [
        [d.read(f"/home/dev/app/lib/{d.word(k)}_{k}.rb", 1, 10, k + 80) for k in range(at, at + 4)]
        for at in range(i * 20, i * 20 + 20, 4)
    ]
    return [*reads]


def _toggled(d: Draw, i: int) -> list[Turn]:
    path, (old, new) = (
        f"/home/dev/app/web/{d.topic(0)}.css",
        [("blue", "green"), ("green", "blue")][i % 2],
    )
    return [
        d.edit(path, f"color: {old};", f"color: {new};"),
        (
            f"It is {new} now.",
            f"hmm, {('no, back to blue', 'the green one after all')[1 - i % 2]} please",
        ),
    ]


def _reverted(d: Draw, i: int) -> list[Turn]:
    path, at = f"/home/dev/app/src/{d.topic(0)}.go", [3 * i, 3 * i + 1, 3 * i + 2]
    there = [d.edit(path, d.text(k, 1), d.text(k + 500, 2)) for k in at]
    back = [d.edit(path, d.text(k + 500, 2), d.text(k, 1)) for k in at]
    return [
        *there,
        (f"Added the {d.word(i)} filter in three places.", "no, revert those changes"),
        *back,
        ("They are reverted.", f"thanks. now try it with {d.word(i + 1)} instead"),
    ]


INNOCENTS: Mapping[str, Form] = {
    "a background shell watched": lambda d, i: [
        (
            "",
            "BashOutput",
            {"bash_id": f"b{d.number}"},
            "<status>running</status>\n\n<stdout>\n"
            + ("" if i % 3 else f"[{i}/12] compiled {d.word(i)}")
            + "\n</stdout>",
        )
    ],
    "a helper waited for": lambda d, i: [
        (
            "",
            "TaskOutput",
            {"task_id": f"a{d.number}f", "block": True, "timeout": 60000},
            "<retrieval_status>timeout</retrieval_status>\n\n<task_id>a{d.number}f</task_id>\n\n"
            "<task_type>local_agent</task_type>\n\n<status>running</status>\n\n<output>\n"
            + "\n".join(f"[Tool: Read] {d.word(k)}.py" for k in range(12))
            + "\n</output>",
        )
    ],
    "a plan document edited": lambda d, i: [
        d.edit(
            "/home/dev/app/plans/rollout.md",
            f"## {d.topic(i)}\n{d.text(i, 2)}",
            f"## {d.topic(i)}\n{d.text(i + 60, 3)}",
        ),
        ("The plan is updated.", REMARKS[i % 4].format(w=d.word(i), t=d.topic(i + 1))),
    ],
    "a design written again": lambda d, i: [
        (
            "",
            "Write",
            {
                "file_path": "/home/dev/app/docs/design.md",
                "content": "# Design\n" + "\n".join(d.text(k, 2) for k in range(i + 2)),
            },
            "The file /home/dev/app/docs/design.md has been updated.",
        ),
        (f"Section {i + 2} is in.", REMARKS[(i + 1) % 4].format(w=d.word(i), t=d.topic(i))),
    ],
    "a revert that was asked for": _reverted,
    "a colour and back on request": _toggled,
    "two hundred productive calls": _productive,
    "two hundred parallel calls": _parallel,
    "doubts in an investigation": lambda d, i: [
        d.read(
            f"/home/dev/app/src/{d.topic(i)}.py",
            10 * i + 1,
            20,
            i + 20,
            f"I read {d.topic(i)} now, which is where {d.word(i)} is made and handed over."
            if i < 5
            else DOUBTS[i % 4].format(w=d.word(i), t=d.topic(i)),
        )
    ],
    "second thoughts in a review": lambda d, i: [
        d.run(
            f"git diff main -- src/{d.word(i)}.ts",
            d.text(i + 200, 6),
            thought=f"Wait, that doesn't work for {d.topic(i)}. Actually I was wrong about "
            f"{d.word(i)}: my assumption was incorrect. Let me check the next file.",
        )
    ],
    "first try fails, file by file": lambda d, i: [
        d.edit(
            f"/home/dev/app/src/{d.word(i)}.py",
            f"import {d.topic(i)}",
            "import core",
            failure=NOT_FOUND.format(old=f"import {d.topic(i)}"),
        ),
        d.read(f"/home/dev/app/src/{d.word(i)}.py", 1, 10, i + 300),
        d.edit(f"/home/dev/app/src/{d.word(i)}.py", f"from {d.topic(i)} import x", "import core"),
    ],
    "first build fails, package by package": lambda d, i: [
        d.run(
            f"make -C packages/{d.word(i)}",
            "configure: error: headers not found\nmake: *** [all] Error 1",
            2,
        ),
        d.run(f"make -C packages/{d.word(i)} headers all", f"built {d.word(i)} {i}.{d.number}"),
    ],
    "red, then green": lambda d, i: [
        d.edit(f"tests/test_{d.topic(0)}.py", f"# {i}", f"def test_{d.word(i)}(): ..."),
        _red(d, f"tests/test_{d.topic(0)}.py", "AttributeError: not there"),
        d.edit(f"src/{d.topic(0)}.py", f"# end {i}", f"def {d.word(i)}(self): return {i}"),
        _green(d, f"tests/test_{d.topic(0)}.py", i),
    ],
    "mutations that a test must catch": lambda d, i: [
        d.edit(f"src/{d.topic(0)}.py", f"limit = {i}", f"limit = {i + 1}", "Break it once."),
        _red(d, f"tests/test_{d.topic(0)}.py", "assert 1 == 2"),
        d.edit(f"src/{d.topic(0)}.py", f"limit = {i + 1}", f"limit = {i}", "Restore it."),
        _green(d, f"tests/test_{d.topic(0)}.py", i),
    ],
    "bisecting commits": lambda d, i: [
        d.run(
            f"git bisect {('bad', 'good')[i % 3 == 1]}",
            f"Bisecting: {900 >> i} revisions left to test after this (roughly {10 - i} steps)\n"
            f"[{d.rng.randrange(16**12):012x}] {d.topic(i)}: {d.word(i)}",
        ),
        d.run("npm test -- login", "Tests: 1 failed, 8 passed\nFAIL src/login.test.ts", 1)
        if i % 3 != 1
        else d.run("npm test -- login", "Tests: 9 passed"),
    ],
    "bisecting plugins": lambda d, i: [
        d.run(
            f"app --disable-plugins {','.join(d.words[: 1 + (i * 5) % 12])} --smoke",
            "Segmentation fault (core dumped)" if i % 2 else f"ok, {12 - i} plugins loaded",
            139 if i % 2 else 0,
        )
    ],
    "hosts that are down": lambda d, i: [
        d.run(
            f"ssh -o ConnectTimeout=5 deploy@{d.word(i)}-{i + 1:02}.example.net uptime",
            f"ssh: connect to host {d.word(i)}-{i + 1:02}.example.net port 22: "
            "Connection timed out",
            255,
        )
    ],
    "tables that may exist": lambda d, i: [
        sql(
            f"SELECT count(*) FROM legacy_{d.topic(i)}",
            f'ERROR: relation "legacy_{d.topic(i)}" does not exist',
        )
    ],
    "a plan that the user corrects": lambda d, i: [
        d.read(f"/home/dev/app/src/{d.topic(i)}.ts", 1, 12, i + 400),
        (
            "",
            "ExitPlanMode",
            {"plan": f"# {d.topic(0)}\n" + "\n".join(f"- {d.word(k)}" for k in range(i + 3))},
            "The user doesn't want to proceed with this tool use. The tool use was rejected. To "
            f"tell you how to proceed, the user said:\nalso think of {d.word(i + 3)}",
        ),
    ],
    "a todo list that moves on": lambda d, i: [
        d.plan(
            [
                (
                    f"Port {d.topic(k)}",
                    ("completed", "in_progress", "pending")[(k > i) + (k > i + 1)],
                )
                for k in range(12)
            ]
        ),
        d.edit(f"src/{d.topic(i)}.py", d.text(i, 1), d.text(i + 40, 1)),
    ],
    "a long file, parts that touch": lambda d, i: [
        d.read("/home/dev/app/src/big.py", 100 * i + 1, 110, 9)
    ],
    "read again after each edit": lambda d, i: [
        d.edit("/home/dev/app/src/core.py", d.text(i, 1), d.text(i + 70, 1)),
        d.read("/home/dev/app/src/core.py", 40, 12, 500 + i),
    ],
    "waited at a rate limit": lambda d, i: [
        d.run(f"gh api repos/dev/{d.topic(i)}/issues", "HTTP 429: API rate limit exceeded", 1),
        d.run("sleep 60", ""),
        d.run(
            f"gh api repos/dev/{d.topic(i)}/issues", f'[{{"title": "{d.word(i)} {d.text(i, 1)}"}}]'
        ),
    ],
    "a rollout that goes on": lambda d, i: [
        d.run(
            "kubectl get pods",
            "NAME READY STATUS RESTARTS AGE\n"
            + "\n".join(
                f"{d.topic(k)}-7d9f 1/1 Running 0 {i + 2}m"
                if k < i
                else f"{d.topic(k)}-7d9f 0/1 ContainerCreating 0 {i + 2}m"
                for k in range(11)
            ),
        )
    ],
    "a form filled in": lambda d, i: [
        browser(
            "type",
            {"element": f"{d.topic(i)} field", "ref": f"e{20 + i}", "text": f"{d.word(i)} {i}"},
            snapshot("form", [f"textbox {d.topic(k)}: {d.word(k)} {k}" for k in range(i + 1)]),
        )
    ],
    "more of a list": lambda d, i: [
        browser(
            "click",
            {"element": "Load more", "ref": "e31"},
            snapshot(
                "list", [f"row {d.word(k)} {d.text(k, 1)[4:30]}" for k in range(5 * i, 5 * i + 5)]
            ),
        )
    ],
    "empty tables counted": lambda d, i: [
        sql(
            f"SELECT count(*) FROM {d.topic(i)}",
            '[{"count": 0}]' if i % 4 else f'[{{"count": {i}}}]',
        )
    ],
    "an index tried out": lambda d, i: [
        sql(f"CREATE INDEX ix_{d.word(i)} ON orders ({d.topic(i)})", "CREATE INDEX"),
        sql(
            "EXPLAIN ANALYZE SELECT * FROM orders WHERE total > 40",
            f"Index Scan using ix_{d.word(i)} (cost=0.{i}..{900 - 61 * i})\nExecution Time: "
            f"{210.5 - 13.7 * i:.2f} ms",
        ),
    ],
    "a session with an interpreter": lambda d, i: [
        (
            "",
            "write_stdin",
            {"session_id": d.number, "chars": f"print(f({i}))\n"},
            f"Chunk ID: {d.rng.randrange(16**6):06x}\nWall time: 0.1 seconds\nProcess running with "
            f"session ID {d.number}\nOutput:\n{(i * 7919) % 997} {d.word(i)}\n>>> ",
        )
    ],
    "a build waited for": lambda d, i: [
        (
            "",
            "write_stdin",
            {"session_id": d.number, "chars": "", "yield_time_ms": 60000},
            f"Chunk ID: {d.rng.randrange(16**6):06x}\nWall time: 60.0 seconds\nProcess running "
            f"with session ID {d.number}\nOutput:\n",
        )
    ],
    "reminded by the harness": lambda d, i: [
        d.run(f"pytest -q tests/test_{d.topic(i)}.py", "FAILED - KeyError: 'x'", 1),
        d.run(f"pytest -q tests/test_{d.topic(i)}.py", "FAILED - KeyError: 'x'", 1),
        ("You have made 2 identical calls in a row. Do not repeat the call; try something else.",),
        d.read(f"/home/dev/app/src/{d.topic(i)}.py", 1, 12, i + 700),
    ],
    "asked for the format": lambda d, i: [
        (
            f"The {d.topic(i)} part reads {d.word(i)} first.",
            "Please always provide EXACTLY ONE action in triple backticks, found 0 actions.",
        ),
        d.read(f"/home/dev/app/src/{d.topic(i)}.py", 1, 12, i + 800),
    ],
    "one rule, file by file": lambda d, i: [
        d.run(
            f"ruff check src/{d.word(i)}.py",
            f"src/{d.word(i)}.py:{i + 9}:80: E501 Line too long\nFound 1 error.",
            1,
        ),
        d.edit(f"src/{d.word(i)}.py", d.text(i, 1), d.text(i, 2)),
        d.run(f"ruff check src/{d.word(i)}.py", "All checks passed!"),
    ],
    "downloads that need a second try": lambda d, i: [
        d.run(
            f"curl -fO https://data.test/{d.word(i)}.tar",
            "curl: (56) Recv failure: Connection reset by peer",
            56,
        ),
        d.run(f"curl -fO https://data.test/{d.word(i)}.tar", f"100 {i + 3}M received"),
    ],
    "approved step by step": lambda d, i: [
        d.run(f"git mv src/{d.word(i)}.py lib/{d.word(i)}.py", ""),
        (f"Moved {d.word(i)}. Shall I move {d.word(i + 1)} next?", APPROVALS[i % 5]),
    ],
    "answers to a review": lambda d, i: [
        d.run(
            f"gh api repos/dev/app/pulls/7/comments/{1000 + 17 * i}/replies -f body='Done.'",
            f'{{"id": {2000 + 19 * i}, "body": "Done.", "path": "src/{d.word(i)}.py"}}',
        )
    ],
}
"""Work that looks like a loop from afar."""


ROUNDS = 11
SEEDS = range(1, 1 + len(CLIENTS))


def messages_of(turns: Sequence[Turn], number: int) -> list[dict]:
    """The chat messages of one round; `number` makes the ids of its calls."""
    found: list[dict] = []
    for at, turn in enumerate(turns):
        if isinstance(turn, tuple) and len(turn) < 4:
            said, *reply = turn if len(turn) == 2 else (None, *turn)
            found += [{"role": "assistant", "content": said}] if said else []
            found += [{"role": "user", "content": text} for text in reply if text]
            continue
        made = turn if isinstance(turn, list) else [turn]
        calls = [
            {
                "id": f"c{number}-{at}-{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (_, name, arguments, _) in enumerate(made)
        ]
        found.append({"role": "assistant", "content": made[0][0] or None, "tool_calls": calls})
        found += [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, (*_, result) in zip(calls, made, strict=True)
        ]
    return found


def first_signs(form: Form, seed: int) -> Signs:
    """The round of the first alarm and of the first SLOW, round 0 being the first time."""
    draw = Draw(seed)
    opening: list[Turn] = [
        draw.run("ls", "README.md src tests", thought="I will look around first."),
        draw.run("cat README.md", "A tool for shops. Install it with pip."),
        draw.read("/home/dev/app/src/main.py", 1, 30, 77),
        draw.read("/home/dev/app/tests/test_main.py", 1, 30, 78),
    ]
    messages = [{"role": "user", "content": "Do the task."}, *messages_of(opening, -1)]
    rounds = (messages_of(form(draw, number), number) for number in range(ROUNDS))
    return signs_of(messages, rounds)


def test_loops_in_the_tools_of_four_clients_are_found() -> None:
    """Of 30 loops 26 raise an alarm within 6 repetitions, whatever the client."""
    found = [first_signs(form, seed)[0] for form in LOOPS.values() for seed in SEEDS]
    assert len(LOOPS) == 30
    assert sum(each is not None and each <= 6 for each in found) >= 0.88 * len(found)


def test_work_that_looks_like_a_loop_is_left_alone() -> None:
    """Of 36 innocents only the one whose plugins crash in turn raises an alarm; none is SLOW."""
    signs = {(name, s): first_signs(form, s) for name, form in INNOCENTS.items() for s in SEEDS}
    assert len(INNOCENTS) == 36
    assert {name for (name, _), (alarm, _) in signs.items() if alarm is not None} <= {
        "bisecting plugins"
    }
    assert not [name for name, (_, slow) in signs.items() if slow is not None]
