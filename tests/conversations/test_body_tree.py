"""The tree of known bodies finds what a comparison with every body finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.conversation import Conversation, History
from gateway.conversations.known_prefixes import BodyTree, KnownBodies
from gateway.steering.identity import Branch
from gateway.wire.body_prefix import BodyPrefix
from tests.examples import examples

_LISTS = ("messages", "input")


def prefix_of(messages: bytes, end: int, list_key: str = "messages") -> BodyPrefix:
    """A body whose last message ends at `end`."""
    return BodyPrefix(raw=messages[:end] + b"]}", spans=((0, end),), list_key=list_key)


# Few different bytes, so that many bodies agree, end within one another, or are equal.
_BODIES = st.binary(min_size=1, max_size=12).map(lambda raw: bytes(97 + byte % 2 for byte in raw))
_CHANGES = st.lists(
    st.tuples(st.integers(0, 7), _BODIES, st.sampled_from(_LISTS), st.booleans()), max_size=40
)


def compared(bodies: dict[str, BodyPrefix], raw: bytes, list_key: str) -> int | None:
    """How long the longest one is that `raw` begins with."""
    fitting = [b.end for b in bodies.values() if b.list_key == list_key and b.begins(raw)]
    return max(fitting, default=None)


@examples(300)
@given(_CHANGES, st.lists(_BODIES, min_size=1, max_size=8))
def test_finds_what_comparing_all_finds(
    changes: list[tuple[int, bytes, str, bool]], asked: list[bytes]
) -> None:
    """However bodies are added, replaced and removed."""
    tree, bodies = BodyTree(), dict[str, BodyPrefix]()
    for number, raw, list_key, stays in changes:
        name = f"conversation {number}"
        if name in bodies:
            tree.remove(name, bodies.pop(name))
        if stays:
            bodies[name] = prefix_of(raw, len(raw), list_key)
            tree.add(name, bodies[name])
    for raw in [*asked, *(body.raw[: body.end] for body in bodies.values())]:
        for tail in (b",{}]}", b"]}", b" ,", b"x"):
            for list_key in _LISTS:
                found = tree.longest(raw + tail, list_key)
                expected = compared(bodies, raw + tail, list_key)
                assert (found.end if found else None) == expected
                assert found is None or found in bodies.values()
    for name, body in bodies.items():
        tree.remove(name, body)
    assert tree.longest(b"a,", "messages") is None


class Counted(bytes):
    """Counts how often its bytes are compared."""

    compared = 0

    def startswith(self, *arguments: object) -> bool:
        """See bytes."""
        type(self).compared += 1
        return super().startswith(*arguments)  # type: ignore[arg-type]


def test_a_look_up_does_not_compare_every_body() -> None:
    """A thousand conversations of one agent: what begins alike is not compared with each."""
    tree, system = BodyTree(), b'{"messages":[{"content":"' + b"You are an agent. " * 500
    bodies = {f"task {n}": system + b"%d" % n + b'"}' for n in range(1000)}
    for name, raw in bodies.items():
        tree.add(name, prefix_of(raw, len(raw)))
    for raw in bodies.values():
        Counted.compared = 0
        found = tree.longest(Counted(raw + b',{"content":"next"}]}'), "messages")
        assert found is not None
        assert found.end == len(raw)
        assert Counted.compared == 1


def test_a_forgotten_transcript_frees_its_room() -> None:
    """A conversation that another gateway has taken over has no bytes of its own any more: its
    next request takes their place in the budget."""
    known = KnownBodies(max_bodies=10, max_bytes=4000)
    branch = Branch(conversation_id="c", served_hash=b"", signature=b"", has_tools=True)
    conversation = Conversation(
        tenant="", source="new", external_key=None, created_at=0.0, history=History(branch=branch)
    )
    for number in range(9):
        raw = b'{"messages":[{"content":"' + b"%d" % number + b"x" * 1000 + b'"}'
        conversation.history.prefix = prefix_of(raw, len(raw))
        assert known.add(conversation) is False
        assert known.longest("", raw + b",{}]}", "messages") is conversation.history.prefix
        conversation.forget_transcript()
    known.drop(conversation)
    assert known.longest("", raw + b",{}]}", "messages") is None
