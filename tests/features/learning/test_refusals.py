"""Answers that say no without being an error: when they count, and when not."""

from __future__ import annotations

import pytest

from gateway.features.learning.verdicts import implicit
from gateway.steering.evidence.results import EMPTY, REFUSED, says_no
from tests.features.learning.runs import read, shell

SAYING: dict[str | None, list[tuple[str, str]]] = {
    EMPTY: [
        ("search_flights", "[]"),
        ("findOrder", '{"results": [], "total": 0}'),
        ("orders.list", '{"data": {"orders": []}}'),
        ("get_customer", "No customer found with this phone number"),
        ("get_customer", '{"found": false}'),
    ],
    REFUSED: [
        ("cancel_order", "This order cannot be cancelled."),
        ("refund", "Refund denied: it was bought 60 days ago."),
        ("refund", '{"eligible": false, "reason": "age"}'),
        ("refund", '{"status": "declined"}'),
        ("issue_voucher", '{"issued": false, "reason": "V-3"}'),
        ("close_pot", '{"status": "blocked"}'),
        ("press", "not pressed: it is under another"),
        ("$larch", "larch: fatal: table is behind"),
    ],
    None: [
        ("block_card", '{"status": "blocked"}'),
        ("update_user", '{"enabled": false}'),
        ("$larch", "2 steps applied, none failed"),
        # An answer, a status or a policy that was asked for, and what a shell does not print.
        ("search_flights", '[{"id": 1}]'),
        ("get_order", '{"id": 3, "items": [], "notes": ""}'),
        ("get_order", '{"paid": false, "items": []}'),
        ("get_policy", "Economy tickets cannot be changed."),
        ("get_order", '{"status": "rejected"}'),
        ("send_mail", "[]"),
        ("refund", '{"status": "approved"}'),
        ("write_note", "He could not come. " * 30),
        ("search", ""),
        ("$grep", "[]"),
        ("search", "{" * 200),
    ],
}


@pytest.mark.parametrize(
    ("tool", "answer", "kind"),
    [(*case, kind) for kind, cases in SAYING.items() for case in cases],
)
def test_which_answers_say_no(tool: str, answer: str, kind: str | None) -> None:
    """Look-ups that find nothing, actions that are turned down; nothing else."""
    assert says_no(tool, answer) == kind


def test_names_of_the_task_make_no_other_failure() -> None:
    """A complaint that repeats words of the call's own arguments has one key."""
    calls = [
        [shell(f"tern check src/{n}.t", f"Error: digest of {n} is off")] for n in ("alpha", "beta")
    ]
    calls += [[("check", {"table": n}, f"Error: digest of {n} is off")] for n in ("alpha", "beta")]
    keys = [read(each)[0].key for each in calls]
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_an_empty_look_up_is_one_failure() -> None:
    """Whatever was looked up, that nothing was found has one key."""
    day = {"from": "ORD", "day": 15}
    found = read([("search_direct", {**day, "day": n}, "[]") for n in range(3)])
    assert len({each.key for each in found}) == 1
    assert found[0].key is not None


def test_an_empty_look_up_at_the_end_is_no_failed_run() -> None:
    """That nothing was found says nothing about the run."""
    nothing = read([("search_direct", {}, "[]")])
    assert implicit(nothing, answered=False) == []
    assert implicit(read([shell("x", "bash: x: command not found")]), answered=False)
