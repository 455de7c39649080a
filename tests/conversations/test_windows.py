"""Clients without an id that send only part of their history: whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.steering.identity import MatchKind
from tests.conversations.driver import Driver, answers, calls, result, says

Messages = list[dict[str, Any]]
Turn = Callable[[int], tuple[dict[str, Any], dict[str, Any]]]

OPENING = [{"role": "system", "content": "You work with care."}, says("Put the files in order.")]
LONG = "The files of this part belong together, because they are read by the same tool. " * 3


def work(n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call under a number that comes again, and its result."""
    return calls(f"cat part{n}", f"call_{n % 4}"), result(f"part {n}", f"call_{n % 4}")


def talk(n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A reply without a call, and what the user says to it."""
    return answers(f"Shall part {n} go first?"), says(f"Part {n} may.")


def programs(n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A command in the text, and what it gave as the user's message."""
    return answers(f"{LONG} Part {n}.\n```bash\ncat part{n}\n```"), says(f"Observation: part {n}")


def newest(messages: Messages) -> Messages:
    """The system message and the newest six."""
    return [messages[0], *messages[1:][-6:]]


def with_opening(messages: Messages) -> Messages:
    """The opening and the newest seven, which begin with what a call gave."""
    return messages if len(messages) < 9 else [*messages[:2], *messages[2:][-7:]]


def with_summary(messages: Messages) -> Messages:
    """A summary that grows in place of all but the newest six."""
    if len(messages) < 9:
        return messages
    return [messages[0], says(f"Summary of {len(messages)} messages."), *messages[-6:]]


def cleared(messages: Messages) -> Messages:
    """What old calls gave is cleared."""
    old = [{**m, "content": "[cleared]"} if m["role"] == "tool" else m for m in messages[:-3]]
    return [*old, *messages[-3:]]


def cut(messages: Messages) -> Messages:
    """The same where it is the user's message."""
    old = messages[2:-3]
    short = [{**m, "content": "[old output]"} if m["role"] == "user" else m for m in old]
    return [*messages[:2], *short, *messages[len(messages) - 3 :]] if old else messages


def histories(turn: Turn, count: int, opening: Messages) -> Iterator[tuple[Messages, Any]]:
    """The whole history before each reply, and the reply."""
    messages = list(opening)
    for n in range(count):
        reply, after = turn(n)
        yield list(messages), reply
        messages += [reply, after]


@pytest.mark.parametrize(
    ("turn", "part"),
    [
        *((turn, part) for turn in (work, talk) for part in (newest, with_opening, with_summary)),
        (work, cleared),
        (programs, newest),
        (programs, cut),
    ],
)
def test_part_of_a_history_continues(turn: Turn, part: Callable[[Messages], Messages]) -> None:
    """A client that drops, clears or sums up old messages keeps its conversation, also where no id
    of a call tells which one that is."""
    driver = Driver()
    made = [driver.turn(part(history), reply) for history, reply in histories(turn, 12, OPENING)]
    assert len({call.conversation for call in made}) == 1
    assert {call.kind for call in made[1:]} <= {MatchKind.CONTINUE, MatchKind.COMPACTION}
    assert made[-1].kind is MatchKind.COMPACTION


@pytest.mark.parametrize("turn", [work, talk])
def test_equal_runs_side_by_side_keep_as_many_conversations(turn: Turn) -> None:
    """Agents with equal messages that all send the newest ones only are not split further."""
    driver = Driver()
    for history, reply in histories(turn, 12, OPENING):
        for _ in range(3):
            driver.turn(newest(history), reply)
    assert len(driver.branches) == 3


def test_an_equal_run_after_another_is_its_own() -> None:
    """The second of two equal runs has requests that the first one had; it stays one run."""
    driver = Driver()
    homes = [
        {driver.turn(newest(h), reply).conversation for h, reply in histories(talk, 12, OPENING)}
        for _ in range(2)
    ]
    assert [len(home) for home in homes] == [1, 1]
    assert homes[0] != homes[1]


def test_another_reply_in_the_history_is_another_run() -> None:
    """A client does not invent replies: a history with a strange one is not a part of this one."""
    driver = Driver()
    made = list(histories(work, 8, OPENING))
    home = {driver.turn(history, reply).conversation for history, reply in made}
    strange = [OPENING[0], says("Else"), calls("ls"), result("a"), *made[-1][0][-4:]]
    strange += [made[-1][1], result("part 7", "call_3")]
    other = driver.begin(strange)
    assert (other.kind, {other.conversation} & home) == (MatchKind.NEW, set())


def test_short_replies_to_other_words_prove_nothing() -> None:
    """Two customers get the same few short replies: each keeps a conversation."""
    driver = Driver()
    for name in ("Mia", "Ben"):
        said = [says(f"I am {name}."), answers("Hello!"), says(f"{name}'s order."), answers("Yes?")]
        driver.turn(said[:1], said[1])
        driver.turn(said[:3], said[3])
    assert len(driver.branches) == 2
    stranger = driver.begin(
        [says("I am Zoe."), answers("Hello!"), says("Mine."), answers("Yes?"), says("No.")]
    )
    assert stranger.kind is MatchKind.NEW


def test_a_loop_seen_through_a_window_is_one_run() -> None:
    """An agent that repeats itself sends equal requests once its window is full of it."""
    driver = Driver()
    same = calls("make", "call_0"), result("make: *** error 2", "call_0")
    made = [driver.turn(with_opening(h), r) for h, r in histories(lambda _: same, 14, OPENING)]
    assert len({call.conversation for call in made}) == 1


def test_a_sample_of_a_shortened_request_is_a_fork() -> None:
    """The same part of a history once more, after its answer, is a run of its own."""
    driver = Driver()
    made = list(histories(work, 10, OPENING))
    for history, reply in made:
        last = driver.turn(newest(history), reply)
    again = driver.begin(newest(made[-1][0]))
    assert (again.kind, again.match.parent) == (MatchKind.FORK, last.conversation)
