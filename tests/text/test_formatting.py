"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.text import formatting

# A price that is unknown is a dash, never nothing.
MONEY = {
    None: formatting.UNKNOWN,
    0: "$0",
    0.0000123: "$0.0000123",
    0.00123: "$0.00123",
    0.2: "$0.20",
    0.5784: "$0.578",
    0.25: "$0.25",
    12.5: "$12.50",
    12345.6: "$12,346",
    -0.5: "-$0.50",
}
# Three digits and a unit.
COUNTS = {
    None: formatting.UNKNOWN,
    0: "0",
    999: "999",
    1234: "1.23k",
    150_000: "150k",
    2.5e6: "2.5M",
}
# From milliseconds to days.
DURATIONS = {
    None: formatting.UNKNOWN,
    0.25: "250 ms",
    3.25: "3.2 s",
    75: "1 min 15 s",
    1800: "30 min",
    7260: "2 h 1 min",
    200_000: "2 d 7 h",
}
SHOWN = ((formatting.money, MONEY), (formatting.count, COUNTS), (formatting.seconds, DURATIONS))


@pytest.mark.parametrize(
    ("show", "value", "shown"), [(show, *case) for show, cases in SHOWN for case in cases.items()]
)
def test_a_number_keeps_what_tells_something(
    show: Callable[[float | None], str], value: float | None, shown: str
) -> None:
    """Money, counts and durations, in the unit that suits."""
    assert show(value) == shown


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("usd", 1.0, "$1.00"),
        ("usd", 0.0125, "$0.0125"),
        ("calls", 1, "1 call"),
        ("input_tokens", 1, "1 input token"),
        ("tokens", 12_000, "12,000 tokens"),
        ("minutes", 1.5, "1 min 30 s"),
        ("context", 12_000, "12,000 context tokens"),
    ],
)
def test_an_amount_has_its_unit(metric: str, value: float, shown: str) -> None:
    """In the singular for one."""
    assert formatting.amount(metric, value) == shown


@pytest.mark.parametrize(
    ("passed", "shown"),
    [(1, "now"), (42, "42 s ago"), (90, "2 min ago"), (7200, "2 h ago"), (864_000, "10 d ago")],
)
def test_times_are_told_from_now(passed: float, shown: str) -> None:
    """The nearest unit."""
    assert formatting.ago(1000.0, now=1000.0 + passed) == shown


def test_shares_and_changes() -> None:
    """Percent, points, and what a ratio changes."""
    assert formatting.percent(0.256) == "26%"
    assert formatting.percent(0.256, 1) == "25.6%"
    assert formatting.points(-0.05) == "-5.0"
    assert formatting.change(0.9) == "-10.0%"
    assert {f(None) for f in (formatting.percent, formatting.points, formatting.change)} == {
        formatting.UNKNOWN
    }
    assert formatting.iso(1_760_000_000) == "2025-10-09T08:53:20Z"
    assert formatting.clock(1_760_000_000) == "2025-10-09 08:53:20"
