"""The innocents of the third set of planted forms: work that looks like a loop from afar."""

from __future__ import annotations

from collections.abc import Mapping

from tests.steering.robust.third_forms import Call, Draw, Form, Turn, browser, snapshot, sql

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
