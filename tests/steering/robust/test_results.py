"""When two results count as the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.evidence.outcomes import without_volatile
from gateway.steering.evidence.results import HEAD_CHARS, TAIL_CHARS, Result

_WORDS = (
    "ok",
    "took",
    "row",
    "failed",
    "src/a.py",
    "3",
    "12:",
    "in",
    "=",
    "\n",
    "-",
    "x=4",
    "\u00e9t\u00e9",
)
_VOLATILE = {
    "0.51s": "12s",
    "2025-01-02T10:00:00Z": "2025-11-30T23:59:59Z",
    "/tmp/pytest-1": "/tmp/run_22/x",  # noqa: S108 - a text
    "0xdeadbeef": "0x12",
    "a81bc81b2f": "0123456789ab",
    "took: 5": "took: 61",
    "line 410:": "line 7:",
}
_pieces = st.lists(st.sampled_from([*_WORDS, *_VOLATILE]), max_size=40)


def _normal(text: str) -> object:
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return without_volatile(text)
    head, tail = text[:HEAD_CHARS], text[-TAIL_CHARS:]
    return without_volatile(head), text[HEAD_CHARS:-TAIL_CHARS], without_volatile(tail)


@given(_pieces, _pieces, st.booleans(), st.sampled_from(["", "y" * 900 + "\n"]))
def test_results_are_equal_without_what_is_volatile(
    one: list[str], other: list[str], again: bool, middle: str
) -> None:
    """Two results are the same when they are equal without times, ids and line numbers."""
    first = " ".join(one) + middle
    second = " ".join(_VOLATILE.get(p, p) for p in one) if again else " ".join(other)
    second += middle
    same = _normal(first) == _normal(second)
    assert (Result(first) == Result(second)) is same
    if same:
        assert hash(Result(first)) == hash(Result(second))


def test_content_is_compared_as_it_is() -> None:
    """Another time in a file is another content; and a picture is part of the result."""
    assert Result("at 10:00:00") == Result("at 11:30:00")
    assert Result("at 10:00:00", exact=True) != Result("at 11:30:00", exact=True)
    assert Result("done", exact=True) == Result("done")
    assert Result("done", image=7) != Result("done")
    settled = Result("took: 5")
    settled.settle()
    assert settled == Result("took: 6")
