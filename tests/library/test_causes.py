"""Failure patterns by cause: each kind of trouble finds its pattern, ordinary work finds none."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from gateway.core.acting import ActionSignal
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import decide, passing
from gateway.core.guidance_plan import CHARS_PER_TOKEN, plan
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import GuidanceState, Moment
from gateway.core.pattern import Pattern, PatternMatch, Query, Tier, causes, with_id
from gateway.core.step import Action, Step
from gateway.library import starter_patterns
from gateway.steering.guidance.situation import read_situation

Case = tuple[str, object, str]
STARTER = starter_patterns()
LISTED = resources.files("gateway.steering.guidance").joinpath("causes.json").read_bytes()
CAUSES = [cause["cause"] for cause in json.loads(LISTED)["causes"]]
TIMES = 3

TROUBLE: dict[str, list[Case]] = {
    "cause-prose-as-command": [
        ("bash", {"command": "I will now list the files to see"}, "bash: I: command not found"),
        ("shell", "Let us look into the log first", "sh: 1: Let: not found"),
    ],
    "cause-shell-quoting": [
        ("bash", {"command": "echo 'it's'"}, "bash: unexpected EOF while looking for matching `''")
    ],
    "cause-program-not-installed": [
        ("bash", {"command": "gradle test"}, "bash: line 1: gradle: command not found"),
        ("terminal", {"command": "cargo build"}, "zsh: command not found: cargo"),
    ],
    "cause-path-guessed": [
        ("bash", {"command": "cat conf/app.toml"}, "cat: conf/app.toml: No such file or directory"),
        ("read_file", {"path": "docs/api.md"}, "Error: ENOENT: no such file or directory"),
        ("bash", {"command": "cat a.txt"}, "cat: a.txt: Datei nicht gefunden"),
    ],
    "cause-module-not-there": [
        ("bash", {"command": "python a.py"}, "ModuleNotFoundError: No module named 'requests'"),
        ("bash", {"command": "node a.js"}, "Error: Cannot find module 'express'"),
    ],
    "cause-not-permitted": [
        ("bash", {"command": "touch /etc/x"}, "touch: cannot touch '/etc/x': Permission denied"),
        ("delete_user", {"id": 7}, '{"error": "403: you are not authorized to do this"}'),
    ],
    "cause-call-malformed": [
        ("create_event", {"day": "Mon"}, "Error: missing required parameter: title"),
        ("bash", {"command": "ls --colour-all"}, "ls: unrecognized option '--colour-all'"),
        ("find_order", {}, "Unknown tool: find_order"),
    ],
    "cause-edit-not-applied": [
        (
            "str_replace_editor",
            {"command": "str_replace", "path": "/a.py", "old_str": "x = 1", "new_str": "x = 2"},
            "No replacement was performed, old_str `x = 1` did not appear verbatim in /a.py.",
        ),
        (
            "edit_file",
            {"path": "b.py", "old_text": "y", "new_text": "z"},
            "Error: Found 4 multiple matches for the text",
        ),
    ],
    "cause-build-broken": [
        ("bash", {"command": "mvn -q compile"}, "[ERROR] /w/A.java:[3,7] cannot find symbol"),
        ("bash", {"command": "npx tsc"}, "src/a.ts(3,5): error TS2322: Type 'x' is not 'y'"),
    ],
    "cause-same-test-fails": [
        (
            "bash",
            {"command": "pytest -q"},
            "FAILED tests/test_a.py::test_a - assert 3 == 4\n1 failed",
        )
    ],
    "cause-same-exception": [
        (
            "bash",
            {"command": "python run.py"},
            "Traceback (most recent call last):\n  File 'run.py', line 3\nKeyError: 'name'",
        )
    ],
    "cause-record-not-found": [
        ("get_user", {"email": "mia@example.org"}, "Error: user not found"),
        ("get_order", {"id": "W9"}, '{"error": "order W9 does not exist"}'),
        ("buscar_pedido", {"id": "W9"}, "Error: pedido no encontrado"),
    ],
    "cause-change-refused": [
        ("update_booking", {"id": 3, "seats": 5}, "Error: number of seats must be at most 4")
    ],
    "cause-too-long": [("run_query", {"q": "join"}, "Error: the query timed out after 60 s")],
    "cause-no-network": [
        ("bash", {"command": "curl https://x.test"}, "curl: (6) Could not resolve host: x.test")
    ],
    "cause-setting-missing": [
        ("bash", {"command": "python app.py"}, "Error: environment variable API_URL is not set")
    ],
    "cause-nothing-found": [
        ("bash", {"command": "grep -rn frobnicate src"}, ""),
        ("bash", {"command": "dpkg -l | grep -i frobnicate"}, ""),
        ("web_search", {"query": "frobnicate"}, "No results found"),
    ],
    "cause-command-slip": [
        ("bash", {"command": "find. -name a"}, "bash: find.: command not found")
    ],
    "cause-check-still-denies": [("can_send_mail", {}, "Your mail app cannot send mail.")],
    "cause-same-failure": [("book", {"day": 3}, "Error: something went wrong")],
    "cause-same-hits": [("web_search", {"query": "tea"}, "1. Tea - tea.test\n2. Cups - cups.test")],
    "cause-same-content": [("read_file", {"path": "a.py"}, "def a():\n    return 1\n" * 4)],
    "cause-same-record": [("get_order", {"id": "W1"}, '{"status": "delivered", "total": 20}')],
    "cause-same-action": [("transfer_to_human", {"why": "refund"}, "Transfer successful")],
    "cause-same-output": [("bash", {"command": "python show.py"}, "total: 7 of 9 rows\nok")],
}
LABELLED = [(expected, case) for expected, cases in TROUBLE.items() for case in cases]

WORK: list[list[Case]] = [
    [("bash", {"command": f"cat src/m{n}.py"}, f"def m{n}(): return {n}") for n in range(4)],
    [("bash", {"command": "pytest -q"}, f"{9 - n} failed, {n} passed in {n}.1s") for n in range(4)],
    [("web_search", {"query": f"topic {n}"}, f"{n}. page {n} - p{n}.test") for n in range(4)],
    [("get_order", {"id": f"W{n}"}, f'{{"status": "open", "total": {n * 7}}}') for n in range(4)],
    [("edit_file", {"path": f"a{n}.py", "old_text": "x", "new_text": "y"}, "ok") for n in range(4)],
    [("read_file", {"path": "big.txt", "offset": 100 * n}, f"part {n} of it") for n in range(4)],
    [("job_status", {"id": 1}, f'{{"state": "running", "done": {n * 20}}}') for n in range(4)],
    [("bash", {"command": "ls"}, "a b"), ("bash", {"command": "python a.py"}, "KeyError: 'x'")],
    [("get_user", {"id": n}, f"Error: user {n} not found" if n == 3 else "ok") for n in range(4)],
    [("refund", {"order": f"W{n}"}, "refunded") for n in range(4)],
]


def steps_of(cases: list[Case]) -> list[Step]:
    """One step for each call."""
    return [
        Step(
            index=index,
            actions=(
                Action(
                    name=name,
                    arguments=asked if isinstance(asked, str) else json.dumps(asked),
                    observation=result,
                ),
            ),
        )
        for index, (name, asked, result) in enumerate(cases)
    ]


def found_for(cause: str) -> list[str]:
    """The patterns that a look-up with this cause lets through, none of them similar."""
    query = Query(tier=Tier.E2, text="x", top_k=2, gate=0.5, floor=0.25, cause=cause)
    near = [PatternMatch(pattern=p, similarity=0.1) for p in STARTER if p.tier is Tier.E2]
    return [match.pattern.pattern_id for match in passing(query, near)]


@pytest.mark.parametrize(("expected", "case"), LABELLED)
def test_trouble_finds_the_pattern_for_its_cause(expected: str, case: Case) -> None:
    """By what failed and how, with texts that no pattern quotes."""
    situation = read_situation(steps_of([case] * TIMES))
    assert situation is not None
    assert situation.persists
    assert expected in found_for(situation.cause.name)


@pytest.mark.parametrize("cases", WORK)
def test_ordinary_work_finds_none(cases: list[Case]) -> None:
    """Reading on, failing less, a first failure: nothing that persists, so no look-up by cause."""
    situation = read_situation(steps_of(cases))
    assert situation is None or not situation.persists
    assert found_for("") == []


def test_each_cause_has_a_pattern_and_three_moves() -> None:
    """And no pattern names a cause that there is not."""
    named = {cause for pattern in STARTER for cause in causes(pattern)}
    assert named == set(CAUSES)


@pytest.mark.parametrize("model", ["gpt-4o", "claude-haiku-4-5", "claude-sonnet-4-5", "o3"])
@pytest.mark.parametrize(
    "tools", [["bash", "edit_file"], ["web_search"], ["get_user", "update_order"], ["frobnicate"]]
)
def test_universal_rules_are_few_and_short(tools: list[str], model: str) -> None:
    """At most five and 120 tokens for each kind of agent and family of models, never none."""
    moment = Moment(step=None, signal=ActionSignal(state=FSMState.INIT), model=model, tools=tools)
    planned = plan(
        GuidanceState(), moment, EtraceSettings(), InjectionSettings(), Gates(e1=1, e2=1)
    )
    rules = [PatternMatch(pattern=p, similarity=1.0) for p in STARTER if p.tier is Tier.E3]
    items = decide(GuidanceState(), planned, {Tier.E3: rules}, InjectionSettings()).items
    assert 3 <= len(items) <= 5
    assert sum(len(item.text) + 2 for item in items) <= 120 * CHARS_PER_TOKEN


def test_own_universal_rules_come_first() -> None:
    """A rule that names no kind of agent is for all, before those that ship."""
    own = with_id(Pattern(tier=Tier.E3, fields={"instruction": "Answer in verse."}))
    rules = [PatternMatch(pattern=p, similarity=1.0) for p in [*STARTER, own] if p.tier is Tier.E3]
    query = Query(tier=Tier.E3, top_k=5, kind="coding")
    assert passing(query, rules)[0].pattern == own
