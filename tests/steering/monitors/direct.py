"""The six reference monitors once more: whole-trace functions in the words of the specification.

Written without regard to cost and without a line shared with the suite, to be compared with it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

Record = dict[str, Any]

HEDGES = [
    *("maybe", "perhaps", "possibly", "might", "could", "not sure", "uncertain", "i think"),
    *("probably", "actually", "wait", "hmm", "reconsider", "let me think", "on second thought"),
]
EDIT_TOOLS = [
    *("edit", "write", "str_replace", "str_replace_editor", "patch", "apply_patch"),
    *("create_file", "overwrite"),
]
RETRACTIONS = [
    r"\b(the\s+)?(bug|issue|problem|fix)\s+is\s+(not|actually)\b",
    r"\bi\s+was\s+wrong\b",
    r"\bnever\s*mind\b",
    r"\bdisregard\s+(that|my\s+last)\b",
]
VOLATILE = [
    (r"(/tmp/|C:\\Users\\|/var/folders/)\S*", 0),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE),
    (r"0x[0-9a-f]+", re.IGNORECASE),
    (r"pid[=: ]\d+", re.IGNORECASE),
    (r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}\S*", 0),
    (r"\b\d{10,}\b", 0),
]


def names(trace: list[Record]) -> list[str]:
    return [step["action"] for step in trace if step["action"]]


def bad(step: Record) -> bool:
    low = step["observation"].lower()
    marks = ["error", "exception", "traceback", "failed", "not found", "assertion", "invalid"]
    return bool(step["is_error"]) or any(mark in low for mark in marks)


def streak(trace: list[Record]) -> float:
    tools, length = names(trace), 0
    while length < len(tools) and tools[-1 - length] == tools[-1]:
        length += 1
    return 0.0 if length <= 1 else min(length / 5, 1.0)


def call_count(trace: list[Record]) -> float:
    return min(len(names(trace)) / 20, 1.0)


def path_in(text: str) -> str:
    found = re.search(r"[\w./\\\-]+\.[A-Za-z]{1,5}", text)
    return found.group() if found else ""


def overlap(one: str, other: str) -> float:
    a = {one[i : i + 3] for i in range(len(one) - 2)}
    b = {other[i : i + 3] for i in range(len(other) - 2)}
    return len(a & b) / len(a | b) if a and b else 0.0


def edit_revert(trace: list[Record]) -> float:
    edits: list[list[Any]] = []
    for step in trace:
        if step["action"].lower() in EDIT_TOOLS:
            edits.append([path_in(step["action_input"]), step["action_input"], False])
        if edits and bad(step):
            edits[-1][2] = True
    if len(edits) < 2:
        return 0.0
    revert = 0.0
    if len(edits) >= 3:
        a, b, c = (edit[1] for edit in edits[-3:])
        revert = 1.0 if overlap(c, a) > overlap(c, b) + 0.10 else 0.0
    counts: dict[str, int] = {}
    for (path, _, failed), following in pairwise(edits):
        if path and failed and following[0] == path:
            counts[path] = counts.get(path, 0) + 1
    return max(revert, min(max(counts.values(), default=0) / 2, 1.0))


def signature(observation: str) -> str:
    for pattern, flags in VOLATILE:
        observation = re.sub(pattern, "#", observation, flags=flags)
    return observation.strip()[:200]


def test_repeat(trace: list[Record]) -> float:
    failures = []
    for step in trace:
        name, low = step["action"].lower(), step["observation"].lower()
        hints = ["pytest", "test", "run_tests", "npm test", "cargo test"]
        is_test = (
            any(hint in name for hint in hints)
            or "test" in low[:60]
            or any(mark in low for mark in ["assertionerror", "failed ", "failures="])
        )
        if is_test and bad(step):
            failures.append(signature(step["observation"]))
    return float(any(a and a == b for a, b in pairwise(failures)))


def diversity(trace: list[Record]) -> float:
    tools = names(trace)
    tail = tools[-5:]
    if len(tools) < 8 or len(set(tail)) >= 3:
        return 0.0
    if len(set(tail)) == 1:
        return 1.0
    alternating = tail[0] != tail[1] and all(tail[i] == tail[i % 2] for i in range(5))
    return 0.0 if alternating else 0.7


def hedge(trace: list[Record]) -> float:
    thoughts = [step["thought"] for step in trace if step["thought"]]
    if any(re.search(p, t, re.IGNORECASE) for t in thoughts for p in RETRACTIONS):
        return 1.0

    def density(some: list[str]) -> tuple[int, int]:
        hedges = sum(t.lower().count(phrase) for t in some for phrase in HEDGES)
        return hedges, sum(len(t.split()) for t in some)

    if len(thoughts) < 4:
        hedges, words = density(thoughts)
        return min(hedges / (0.05 * words + 1), 1.0)
    half = len(thoughts) // 2
    early, late = (h / max(w, 1) for h, w in map(density, (thoughts[:half], thoughts[half:])))
    if early == 0:
        return min(late / 0.05, 1.0) if late else 0.0
    ratio = late / early
    return 0.0 if ratio <= 2 else min((ratio - 1) / 3, 1.0)


DIRECT = {
    "streak": streak,
    "call_count": call_count,
    "edit_revert": edit_revert,
    "test_repeat": test_repeat,
    "diversity": diversity,
    "hedge": hedge,
}
