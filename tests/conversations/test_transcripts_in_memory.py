"""Which transcripts stay in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.known_prefixes import TranscriptsInMemory

MIB = 2**20


def used(room: TranscriptsInMemory, name: str, size: int = 0) -> list[str]:
    """Mark a transcript as used, and forget those over the limits."""
    surplus = room.use(name, size)
    for oldest in surplus:
        room.forget(oldest)
    return surplus


def test_the_least_recently_used_go_first() -> None:
    """Beyond the number of transcripts the one that was not used for longest is dropped."""
    room = TranscriptsInMemory(2, 1000 * MIB)
    assert [used(room, name) for name in "aba"] == [[], [], []]
    assert used(room, "c") == ["b"]
    assert used(room, "d") == ["a"]


def test_long_histories_count_for_more() -> None:
    """The memory is shared by size: one long history takes the place of several short ones."""
    room = TranscriptsInMemory(1000, 2 * MIB)
    assert [used(room, name) for name in "abcd"] == [[], [], [], []]
    assert used(room, "long", 3 * MIB) == ["a", "b"]


def test_the_history_in_use_stays_whatever_its_size() -> None:
    """A history above the whole budget is kept until another one is used."""
    room = TranscriptsInMemory(1000, 2 * MIB)
    assert used(room, "long", 100 * MIB) == []
    assert used(room, "long", 101 * MIB) == []
    assert used(room, "short") == ["long"]
    assert used(room, "other") == []


def test_what_cannot_be_forgotten_yet_is_named_again() -> None:
    """A transcript over the limits counts until it is forgotten."""
    room = TranscriptsInMemory(1, 1000 * MIB)
    assert [room.use(name, 0) for name in "ab"] == [[], ["a"]]
    assert room.use("c", 0) == ["a", "b"]
    room.forget("b")
    assert room.use("c", 0) == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 4 * MIB)), max_size=60))
def test_what_is_kept_is_within_both_limits(uses: list[tuple[str, int]]) -> None:
    """At most three transcripts stay, and no more bytes of bodies than the budget, but for one."""
    room, kept = TranscriptsInMemory(3, 4 * MIB), dict[str, int]()
    for name, size in uses:
        kept[name] = size
        for gone in used(room, name, size):
            del kept[gone]
        assert name in kept
        assert len(kept) <= 3
        assert len(kept) == 1 or sum(kept.values()) / 2 <= 4 * MIB
