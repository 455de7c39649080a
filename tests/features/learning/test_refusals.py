"""Answers that say no without being an error: when they count, and when not."""

from __future__ import annotations

import pytest

from gateway.features.learning.verdicts import implicit
from gateway.steering.evidence.results import EMPTY, REFUSED, says_no
from tests.features.learning.runs import read, shell


@pytest.mark.parametrize(
    ("tool", "answer", "kind"),
    [
        ("search_flights", "[]", EMPTY),
        ("findOrder", '{"results": [], "total": 0}', EMPTY),
        ("orders.list", '{"data": {"orders": []}}', EMPTY),
        ("get_customer", "No customer found with this phone number", EMPTY),
        ("get_customer", '{"found": false}', EMPTY),
        ("cancel_order", "This order cannot be cancelled.", REFUSED),
        ("refund", "Refund denied: it was bought 60 days ago.", REFUSED),
        ("refund", '{"eligible": false, "reason": "age"}', REFUSED),
        ("refund", '{"status": "declined"}', REFUSED),
        ("issue_voucher", '{"issued": false, "reason": "V-3"}', REFUSED),
        ("close_pot", '{"status": "blocked"}', REFUSED),
        ("press", "not pressed: it is under another", REFUSED),
        ("$larch", "larch: fatal: table is behind", REFUSED),
        ("block_card", '{"status": "blocked"}', None),
        ("update_user", '{"enabled": false}', None),
        ("$larch", "2 steps applied, none failed", None),
        # An answer, a status or a policy that was asked for, and what a shell does not print.
        ("search_flights", '[{"id": 1}]', None),
        ("get_order", '{"id": 3, "items": [], "notes": ""}', None),
        ("get_order", '{"paid": false, "items": []}', None),
        ("get_policy", "Economy tickets cannot be changed.", None),
        ("get_order", '{"status": "rejected"}', None),
        ("send_mail", "[]", None),
        ("refund", '{"status": "approved"}', None),
        ("write_note", "He could not come. " * 30, None),
        ("search", "", None),
        ("$grep", "[]", None),
        ("search", "{" * 200, None),
    ],
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
