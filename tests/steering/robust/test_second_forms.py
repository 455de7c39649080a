"""The second set of planted forms: what the monitors find of causes, and what they leave alone."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.steering.robust.planting import Signs, signs_of
from tests.steering.robust.second_forms import INNOCENTS, LOOPS, ROUNDS, Round, page, sh

OPENINGS: tuple[Round, ...] = (
    [
        sh("ls", "README.md src tests", "I will look around first."),
        sh("cat README.md", "A tool that turns invoices into ledgers. Install with pip."),
        sh("sed -n 1,80p src/main.py", page(8)),
        sh("cat tests/test_main.py", page(9)),
    ],
    [
        ("Hello! How can I help?", "My order is wrong."),
        ("", "get_user", {"id": "u1"}, '{"name": "Mia", "orders": ["W1", "W2"]}'),
        ("", "get_order_list", {"user": "u1"}, '{"W1": "pending", "W2": "delivered"}'),
        ("I see two orders. Which one?", "The first."),
    ],
    [
        ("", "web_search", {"query": "who built the harbour"}, page(8)),
        ("", "open_page", {"url": "https://harbour.test"}, page(9)),
        ("", "open_page", {"url": "https://harbour.test/list"}, page(10)),
    ],
)
"""What a run of code, of dialogue and of research begins with, before the form."""
PER_KIND = 12


def messages_of(turns: Round, number: int) -> list[dict]:
    """The chat messages of one round; `number` makes the ids of its calls."""
    found: list[dict] = []
    for at, turn in enumerate(turns):
        if len(turn) == 2:
            said, reply = turn
            found.append({"role": "assistant", "content": said})
            found += [{"role": "user", "content": reply}] if reply else []
            continue
        thought, name, arguments, result = turn
        call_id = f"c{number}-{at}"
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": call_id, "type": "function", "function": function}]
        found.append({"role": "assistant", "content": thought or None, "tool_calls": calls})
        found.append({"role": "tool", "tool_call_id": call_id, "content": result})
    return found


def first_signs(form: Callable[[int], Round], opening: Round) -> Signs:
    """The round of the first alarm and of the first SLOW, round 0 being the first time."""
    messages = [{"role": "user", "content": "Do the task."}, *messages_of(opening, -1)]
    rounds = (messages_of(form(number), number) for number in range(ROUNDS))
    return signs_of(messages, rounds)


def test_loops_of_other_causes_are_found() -> None:
    """Of 36 loops 20 raise an alarm within 6 repetitions, 25 within 10: what is left needs the
    meaning of words."""
    found = [
        first_signs(form, OPENINGS[at // PER_KIND])[0] for at, form in enumerate(LOOPS.values())
    ]
    assert len(found) == 36
    assert sum(each is not None and each <= 6 for each in found) >= 20
    assert sum(each is not None and each <= 10 for each in found) >= 25


def test_work_of_other_kinds_is_left_alone() -> None:
    """Of 36 innocents none raises an alarm; only the one with two dead links in three is SLOW, in
    the ninth round."""
    signs = {
        name: first_signs(form, OPENINGS[at // PER_KIND])
        for at, (name, form) in enumerate(INNOCENTS.items())
    }
    assert len(signs) == 36
    found = {name: sign for name, sign in signs.items() if sign != (None, None)}
    assert found == {"links, some dead": (None, 8)}


def test_a_test_that_fails_for_another_reason_each_time_is_progress() -> None:
    """Go names the test in one line and the reason in the next one; the same reason is a loop."""

    def fixing(reason: Callable[[int], str]) -> Callable[[int], Round]:
        def form(i: int) -> Round:
            failed = f"--- FAIL: TestParse (0.00s)\n    parse_test.go:{20 + i}: {reason(i)}\nFAIL"
            edit = {"filePath": "/w/parse.go", "oldString": f"case {i}:", "newString": "case 0:"}
            return [sh("go test ./...", failed), ("", "edit", edit, "Edit applied successfully.")]

        return form

    wanted = [f"want {word}" for word in "amber birch cedar dune ember fjord grove heath".split()]  # noqa: SIM905
    assert first_signs(fixing(lambda i: wanted[i % 8]), OPENINGS[0])[0] is None
    assert first_signs(fixing(lambda _: wanted[0]), OPENINGS[0])[0] is not None


def test_what_fails_now_and_then_and_brings_news_is_a_search() -> None:
    """Two dead links for each page that is there are no alarm; dead links alone are one."""

    def opened(i: int, *, found: bool) -> Round:
        result = page(i) if found and i % 3 == 0 else "404 Not Found"
        return [("", "open_page", {"url": f"https://a.test/{i}"}, result)]

    assert first_signs(lambda i: opened(i, found=True), OPENINGS[2]) == (None, None)
    assert first_signs(lambda i: opened(i, found=False), OPENINGS[2])[0] is not None
