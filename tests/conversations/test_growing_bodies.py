"""Bodies that are not read go on with each other by the bytes of their messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.conversations.known_prefixes import GrowingBodies, messages_of

OWNER = ("tenant", "key", "chat", "m")


class Bodies:
    """Says of each list of messages which conversation it goes on."""

    def __init__(self) -> None:
        self.known = GrowingBodies()
        self.count = 0

    async def sent(
        self, messages: list[Any], *, again: bool = False, owner: tuple[str, ...] = OWNER
    ) -> str:
        raw = json.dumps(messages).encode()
        view = messages_of(raw, [(0, len(raw))])
        assert view is not None
        found = await self.known.find(owner, view, again=again)
        name = found.conversation_id
        if name is None:
            self.count += 1
            name = str(self.count)
        self.known.keep(owner, replace(found, conversation_id=name))
        return name


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_growing_list_is_one_conversation(size: int) -> None:
    """Also beside others that begin alike."""
    bodies, one, two = Bodies(), ["a" * size], ["b" * size]
    for step in range(5):
        assert await bodies.sent(one) == "1"
        assert await bodies.sent(two) == "2"
        one.append(f"one {step}")
        two.append(f"two {step}")


async def test_an_equal_body_is_the_same_call_only_where_the_client_says_so() -> None:
    """k samples of one prompt are k runs."""
    bodies = Bodies()
    assert await bodies.sent(["a"]) == "1"
    assert await bodies.sent(["a"]) == "2"
    assert await bodies.sent(["a"], again=True) in ("1", "2")


async def test_of_two_that_go_on_with_one_list_the_second_is_a_conversation_of_its_own() -> None:
    """And each goes on with its own."""
    bodies = Bodies()
    assert await bodies.sent(["a"]) == "1"
    assert await bodies.sent(["a", "b"]) == "1"
    assert await bodies.sent(["a", "c"]) == "2"
    assert await bodies.sent(["a", "b", "d"]) == "1"
    assert await bodies.sent(["a", "c", "d"]) == "2"


async def test_a_list_that_does_not_go_on_is_another() -> None:
    """Bytes that are equal within a message are no earlier call; another owner knows nothing."""
    bodies = Bodies()
    assert await bodies.sent([1]) == "1"
    assert await bodies.sent([12]) == "2"
    assert await bodies.sent([1, 2], owner=("other", "key", "chat", "m")) == "3"
    assert await bodies.sent([0, 1, 2]) == "4"
    assert await bodies.sent([1, 2]) == "1"


async def test_the_newest_of_an_owner_are_known() -> None:
    """So that no owner takes more memory than that."""
    bodies = Bodies()
    for number in range(1, 80):
        assert await bodies.sent([str(number)]) == str(number)
    assert await bodies.sent(["1", "next"]) == "80"
    assert await bodies.sent(["79", "next"]) == "79"


@pytest.mark.parametrize("raw", [b"[]", b"[ ]", b'"text"', b"null", b"{}"])
def test_what_is_no_list_with_messages_goes_on_with_nothing(raw: bytes) -> None:
    """Its bytes say nothing about a conversation."""
    assert messages_of(raw, [(0, len(raw))]) is None
    assert messages_of(b"[1][1]", [(0, 3), (3, 6)]) is None
