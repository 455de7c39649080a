"""The third set of planted forms, in the tools of four clients: what is found, what is left alone.

Half of it, every second form, was held back until the monitors were done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.steering.robust.planting import Signs, signs_of
from tests.steering.robust.third_forms import CLIENTS, Draw, Form, Turn
from tests.steering.robust.third_innocents import INNOCENTS
from tests.steering.robust.third_loops import LOOPS

ROUNDS = 11
SEEDS = range(1, 1 + len(CLIENTS))


def messages_of(turns: Sequence[Turn], number: int) -> list[dict]:
    """The chat messages of one round; `number` makes the ids of its calls."""
    found: list[dict] = []
    for at, turn in enumerate(turns):
        if isinstance(turn, tuple) and len(turn) < 4:
            said, *reply = turn if len(turn) == 2 else (None, *turn)
            found += [{"role": "assistant", "content": said}] if said else []
            found += [{"role": "user", "content": text} for text in reply if text]
            continue
        made = turn if isinstance(turn, list) else [turn]
        calls = [
            {
                "id": f"c{number}-{at}-{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (_, name, arguments, _) in enumerate(made)
        ]
        found.append({"role": "assistant", "content": made[0][0] or None, "tool_calls": calls})
        found += [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, (*_, result) in zip(calls, made, strict=True)
        ]
    return found


def first_signs(form: Form, seed: int) -> Signs:
    """The round of the first alarm and of the first SLOW, round 0 being the first time."""
    draw = Draw(seed)
    opening: list[Turn] = [
        draw.run("ls", "README.md src tests", thought="I will look around first."),
        draw.run("cat README.md", "A tool for shops. Install it with pip."),
        draw.read("/home/dev/app/src/main.py", 1, 30, 77),
        draw.read("/home/dev/app/tests/test_main.py", 1, 30, 78),
    ]
    messages = [{"role": "user", "content": "Do the task."}, *messages_of(opening, -1)]
    rounds = (messages_of(form(draw, number), number) for number in range(ROUNDS))
    return signs_of(messages, rounds)


def test_loops_in_the_tools_of_four_clients_are_found() -> None:
    """Of 30 loops 26 raise an alarm within 6 repetitions, whatever the client."""
    found = [first_signs(form, seed)[0] for form in LOOPS.values() for seed in SEEDS]
    assert len(LOOPS) == 30
    assert sum(each is not None and each <= 6 for each in found) >= 0.88 * len(found)


def test_work_that_looks_like_a_loop_is_left_alone() -> None:
    """Of 36 innocents only the one whose plugins crash in turn raises an alarm; none is SLOW."""
    signs = {(name, s): first_signs(form, s) for name, form in INNOCENTS.items() for s in SEEDS}
    assert len(INNOCENTS) == 36
    assert {name for (name, _), (alarm, _) in signs.items() if alarm is not None} <= {
        "bisecting plugins"
    }
    assert not [name for name, (_, slow) in signs.items() if slow is not None]
