"""The loops of the third set of planted forms: no news, no effect, nothing done."""

from __future__ import annotations

from collections.abc import Mapping

from tests.steering.robust.third_forms import Call, Draw, Form, Turn, browser, snapshot, sql

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
