"""Loops and innocent look-alikes to insert into healthy runs.

Each function returns the steps to insert; a loop is the first occurrence and its repetitions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.core.decision_settings import Policy
from gateway.core.step import Action, Step
from gateway.steering.runs_of_transcript import ConversationFold

Plant = Callable[[random.Random, Sequence[Step], int], list[Step]]

ERRORS = (
    "ModuleNotFoundError: No module named 'yaml'",
    "Error: connection to database refused",
    "bash: rg: command not found",
    "FileNotFoundError: [Errno 2] No such file or directory: 'conf/settings.toml'",
)
MUSINGS = (
    "I should think about the structure of this problem again before touching anything, because "
    "the relation between the loader and the cache is the part that matters and it needs care.",
    "Before touching anything I should think again about the structure of this problem: the cache "
    "and the loader are related, that is the part that matters, and it needs care.",
)
TOPICS = ("parser cache loader schema index queue router planner socket buffer lexer token").split()  # noqa: SIM905 - a list of words reads best as words


def step(name: str, arguments: object, observation: str, thought: str = "") -> Step:
    """One step with one call; arguments are serialised unless they are text already."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Step(
        index=0,
        thought=thought,
        actions=(Action(name=name, arguments=text, observation=observation),),
    )


def say(text: str) -> Step:
    """One step without an action."""
    return Step(index=0, thought=text)


def identical_call(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """A call of the run made again and again, with the result it had."""
    chosen = _acting(rng, run)
    return [chosen] * (repetitions + 1)


def reworded_call(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """One search put into other words each time; the answer stays."""
    words = rng.sample(TOPICS, 5)
    answer = rng.choice(
        (
            "No results found for this query.",
            "1. docs/guide.md: how the parts fit together\n2. docs/faq.md: common questions",
        )
    )
    extra = ("please", "exactly", "details", "the", "all")
    variants = [
        words,
        [*words[1:], words[0]],
        [words[0], extra[0], *words[1:]],
        [*words, extra[1]],
        [extra[3], *reversed(words)],
        [*words[:3], extra[4], *words[3:]],
        [extra[2], *words],
        [words[0].title(), *words[1:]],
    ]
    return [
        step("search", {"query": " ".join(variants[i % len(variants)])}, answer)
        for i in range(repetitions + 1)
    ]


def alternating_calls(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """Two calls of the run in turn, each with the result it had."""
    first = _acting(rng, run)
    second = next(
        (s for s in rng.sample(run, len(run)) if s.actions and s.actions != first.actions),
        step("list_files", {"path": "."}, "README.md\nsrc\ntests"),
    )
    return [first, second] * (repetitions + 1)


def edit_ping_pong(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """A line changed to and fro in one file."""
    path = f"/repo/src/{rng.choice(TOPICS)}.py"
    one, two = "    return value + 1", "    return value - 1"
    done = f"The file {path} has been edited."
    style = rng.choice(("str_replace_editor", "edit_file", "apply_patch", "edit"))
    steps = []
    for i in range(repetitions + 1):
        old, new = (one, two) if i % 2 == 0 else (two, one)
        if style == "str_replace_editor":
            arguments: object = {
                "command": "str_replace",
                "path": path,
                "old_str": old,
                "new_str": new,
            }
        elif style == "edit_file":
            arguments = {"file_path": path, "old_string": old, "new_string": new}
        elif style == "edit":
            arguments = {"lines": "12:12", "text": new, "path": path}
        else:
            patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch"
            arguments = {"input": patch}
        steps.append(step(style, arguments, done, "Let me change this line."))
    return steps


def test_rerun(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """The same failing test run again with nothing changed; only the timing differs."""
    topic = rng.choice(TOPICS)
    return [
        step(
            "bash",
            {"command": f"cd /repo && python -m pytest tests/test_{topic}.py -x"},
            f"collected 7 items\n\ntests/test_{topic}.py ..F\n\nE       AssertionError: expected "
            f"3, got 4\n=========== 1 failed, 2 passed in {rng.random():.2f}s ===========",
            "Run the test.",
        )
        for _ in range(repetitions + 1)
    ]


def repeated_error(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """Different commands that all end in the same error."""
    error = rng.choice(ERRORS)
    topics = rng.sample(TOPICS, repetitions + 1)
    return [
        step("bash", {"command": f"python scripts/{topic}.py --level {i}"}, error)
        for i, topic in enumerate(topics)
    ]


def monologue(rng: random.Random, run: Sequence[Step], repetitions: int) -> list[Step]:
    """Messages that say the same at length and do nothing."""
    return [say(MUSINGS[i % 2]) for i in range(repetitions + 1)]


def polling(rng: random.Random, run: Sequence[Step], length: int = 12) -> list[Step]:
    """A job asked for its status until it is done."""
    job = f"job-{rng.randrange(10_000)}"
    texts = rng.choice(
        (
            ['{"status": "running"}'] * length,
            [f'{{"state": "in_progress", "percent": {8 * i}}}' for i in range(length)],
            ["Build is still queued, waiting for a runner."] * length,
        )
    )
    finished = '{"status": "succeeded", "artifact": "build.zip"}'
    return [step("get_job_status", {"id": job}, text) for text in [*texts, finished]]


def reading_files(rng: random.Random, run: Sequence[Step], length: int = 20) -> list[Step]:
    """Twenty files read one after the other."""
    return [
        step(
            "read_file",
            {"path": f"src/{rng.choice(TOPICS)}/{rng.choice(TOPICS)}_{i}.py"},
            "\n".join(
                f"{n}: def {rng.choice(TOPICS)}_{rng.randrange(999)}(value): return value"
                for n in range(1, 12)
            ),
            "Reading the next file.",
        )
        for i in range(length)
    ]


def pagination(rng: random.Random, run: Sequence[Step], length: int = 12) -> list[Step]:
    """A listing read page by page."""
    return [
        step(
            "list_orders",
            {"customer": "C-77", "page": page},
            json.dumps(
                [{"order": rng.randrange(10**6), "total": rng.randrange(500)} for _ in "abcd"]
            ),
        )
        for page in range(1, length + 1)
    ]


def rate_limit_retry(rng: random.Random, run: Sequence[Step], length: int = 3) -> list[Step]:
    """A call refused a few times by a rate limit, then answered."""
    refusal = rng.choice(
        ("Error: 429 Too Many Requests, retry later", "Error: 503 Service Unavailable")
    )
    query = {"query": rng.choice(TOPICS)}
    return [
        *[step("web_search", query, refusal) for _ in range(length)],
        step("web_search", query, "1. A guide to the topic\n2. A longer guide"),
    ]


def edit_test_edit(rng: random.Random, run: Sequence[Step], length: int = 6) -> list[Step]:
    """Edits and test runs in turn, with one failure less each time."""
    steps = []
    for left in range(length, -1, -1):
        steps.append(
            step(
                "str_replace_editor",
                {
                    "command": "str_replace",
                    "path": "/repo/src/core.py",
                    "old_str": f"case_{left} = None",
                    "new_str": f"case_{left} = handle_{rng.choice(TOPICS)}",
                },
                "The file /repo/src/core.py has been edited.",
                "Now the next case.",
            )
        )
        verdict = f"{left} failed, {20 - left} passed" if left else "20 passed"
        failing = "".join(f"FAILED tests/test_core.py::test_case_{n}\n" for n in range(left))
        steps.append(
            step(
                "bash",
                {"command": "pytest tests/test_core.py -q"},
                f"{failing}===== {verdict} in 0.{rng.randrange(10, 99)}s =====",
                "Run the tests.",
            )
        )
    return steps


LOOPS: dict[str, Plant] = {
    "identical call": identical_call,
    "reworded call": reworded_call,
    "A-B-A-B": alternating_calls,
    "edit ping-pong": edit_ping_pong,
    "test re-run": test_rerun,
    "error repeat": repeated_error,
    "monologue": monologue,
}
INNOCENTS: dict[str, Callable[[random.Random, Sequence[Step]], list[Step]]] = {
    "polling": polling,
    "reading files": reading_files,
    "pagination": pagination,
    "rate limit": rate_limit_retry,
    "edit-test-edit": edit_test_edit,
}


def _acting(rng: random.Random, run: Sequence[Step]) -> Step:
    return rng.choice([s for s in run if s.actions])


def planted(run: Sequence[Step], inserted: Sequence[Step], position: int) -> list[Step]:
    """The run with `inserted` before step `position`, renumbered."""
    steps = [*run[:position], *inserted, *run[position:]]
    return [
        Step(index=i, thought=s.thought, actions=s.actions, reasoning=s.reasoning)
        for i, s in enumerate(steps)
    ]


Signs = tuple[int | None, int | None]
"""The round of the first alarm and of the first SLOW, None without one."""


def signs_of(opening: list[Any], rounds: Iterable[list[Any]]) -> Signs:
    """The first signs of trouble after an opening; each round has the messages that it adds."""
    messages = list(opening)
    fold = ConversationFold(Policy())
    fold.extend(messages)
    alarm = slow = None
    for number, more in enumerate(rounds):
        messages += more
        for outcome in fold.extend(messages):
            if alarm is None and outcome.readings.fired:
                alarm = number
            if slow is None and outcome.state.value in ("SLOW", "SKIP"):
                slow = number
    return alarm, slow
