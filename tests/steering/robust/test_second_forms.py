"""The second set of planted forms: what the monitors find of causes, and what they leave alone.

A second set of planted forms: 36 loops and 36 innocents, in code, dialogue and research.

They were written after the monitors' constants were set, from causes: no news for the agent, a
state of the world that comes back, an effect that does not follow the act. Each is a list of
rounds; a round is what the agent does in one go, as (thought, tool, arguments, result) or, without
a tool, (message, the user's reply or None).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from steering_gateway_testing.planting import Signs, signs_of

Round = Sequence[tuple]
ROUNDS = 11
NAMES = "anna bert clara dora emil frida gustav hanna ida jonas karla".split()  # noqa: SIM905
WORDS = "amber birch cedar dune ember fjord grove heath islet juniper knoll".split()  # noqa: SIM905
TOPICS = (
    "rivers of norway",
    "opera houses",
    "tea trade",
    "glacier melt",
    "roman roads",
    "polar birds",
    "steam engines",
    "paper making",
    "coral reefs",
    "night trains",
    "clock towers",
)


def sh(command: str, result: str, thought: str = "") -> tuple:
    return (thought, "bash", {"command": command}, result)


def page(i: int) -> str:
    """Text that differs from page to page."""
    k = [f"{WORDS[(i * 7 + j * 3) % 11]}{i}{j} {NAMES[(i + j) % 11]}{j * i}" for j in range(14)]
    return f"{TOPICS[i % 11]}: " + " ".join(k)


def _cycle(*rounds: Round) -> Callable[[int], Round]:
    return lambda i: rounds[i % len(rounds)]


HITS = ["Fjord guide - fjords.test/guide", "Old maps - maps.test/old", "Boats - boats.test/all"]
APOLOGIES = (
    "I am sorry for the wait, I am taking care of the refund right now.",
    "Apologies for the delay! Your refund is being taken care of as we speak.",
    "Thank you for your patience; I am working on the refund at this moment.",
    "I apologise once more. The refund is what I am handling right now for you.",
)
QUESTIONS = (
    "Could you give me the number of the order, please?",
    "May I have your order number so that I can look?",
    "Please tell me which order number this is about.",
    "What is the order's number, so I can check it?",
)
PLANS = (
    "Plan: first find the list of members, then count the ones elected before 1990, then answer.",
    "Updated plan: find the members list first, count those elected before 1990, then answer.",
    "Let me plan: list of members to be found first; those elected before 1990 counted; answer.",
)

LOOPS: Mapping[str, Callable[[int], Round]] = {
    # code
    "write, run, remove": lambda i: [
        sh(f"cat > try{i}.py <<'EOF'\nimport core\ncore.run({i})\nEOF", ""),
        sh(f"python try{i}.py", "Traceback (most recent call last):\nKeyError: 'backend'"),
        sh(f"rm try{i}.py", ""),
    ],
    "stash and pop": _cycle(
        [sh("git stash", "Saved working directory and index state WIP on main: 3f2b8c1 start")],
        [sh("git stash pop", "On branch main\nmodified: a.py\nDropped refs/stash@{0}")],
    ),
    "two versions": _cycle(
        [sh("pip install lib==1.4", "ERROR: tool 2.0 requires lib>=2, but you have lib 1.4")],
        [sh("pip install lib==2.1", "ERROR: base 0.9 requires lib<2, but you have lib 2.1")],
    ),
    "restart and still down": lambda i: [
        sh("systemctl restart api", f"started, pid {4100 + 37 * i}"),
        sh("curl -s localhost:8000/health", "curl: (7) Failed to connect to localhost port 8000"),
    ],
    "two values in turn": lambda i: [
        (
            "",
            "str_replace_editor",
            {
                "command": "str_replace",
                "path": "/w/conf.py",
                "old_str": f"depth = {3 + i % 2}",
                "new_str": f"depth = {4 - i % 2}",
            },
            "The file /w/conf.py has been edited.",
        ),
        sh("pytest -q", f"{2 + i % 2} failed, 40 passed in {i}.3s\nFAILED tests/test_d.py::test_d"),
    ],
    "other edits, same error": lambda i: [
        (
            f"Perhaps {NAMES[i % 11]} matters.",
            "edit_file",
            {
                "path": "src/a.ts",
                "old_text": f"// {WORDS[i % 11]}",
                "new_text": f"// {NAMES[i % 11]}",
            },
            "ok",
        ),
        sh("npm run build", f"src/a.ts({30 + i},5): error TS2322: Type 'string' is not assignable"),
    ],
    "a setting that stays": lambda i: [
        sh(f"sed -i 's/port: 8080/port: 90{10 + i}/' /etc/app.yml", ""),
        sh("app config get port", "port: 8080"),
    ],
    "up and down a file": _cycle(
        [("", "scroll_down", {}, "[lines 101-200]\n" + page(2))],
        [("", "scroll_up", {}, "[lines 1-100]\n" + page(1))],
    ),
    "one rule against another": lambda i: [
        sh(f"echo 'x = {i}' >> a.py", ""),
        sh("ruff check a.py", ("a.py:9:1: E302 two lines", "a.py:9:1: E303 too many lines")[i % 2]),
    ],
    "every door is locked": lambda i: [
        sh(
            f"cat /srv/{WORDS[i % 11]}/{NAMES[i % 11]}.conf",
            f"cat: /srv/{WORDS[i % 11]}/{NAMES[i % 11]}.conf: Permission denied",
        )
    ],
    "the container dies": lambda i: [
        sh("docker compose up -d", f"Container app-{i}f3c{i}9d started"),
        sh(
            "docker compose logs app",
            f"2025-01-0{i % 9 + 1}T10:00:0{i % 9} app-{i}f3c exited: missing key SECRET",
        ),
    ],
    "a print that never comes": lambda i: [
        (
            "",
            "edit_file",
            {
                "path": "core/run.py",
                "old_text": f"# {WORDS[i % 11]}",
                "new_text": f"print('here {i}')",
            },
            "ok",
        ),
        sh("python main.py", "result: 41 (expected 42)"),
    ],
    # dialogue
    "asked in other words": lambda i: [(QUESTIONS[i % 4], "I have already told you: it is W7710.")],
    "confirmed again and again": lambda i: [
        (
            f"{('So', 'Just to be sure', 'To confirm', 'Once more')[i % 4]}: "
            "shall I cancel the reservation ZFA04Y for you?",
            "Yes, please.",
        )
    ],
    "an update without effect": lambda i: [
        ("", "update_address", {"order": "W1", "street": "12 Elm Road"}, '{"status": "accepted"}'),
        ("", "get_order", {"order": "W1"}, '{"order": "W1", "street": "3 Oak Lane", "items": 2}'),
    ],
    "off and on again": lambda i: [
        ("", "toggle_data", {"on": bool(i % 2)}, f"Mobile data is now {('off', 'on')[i % 2]}."),
        ("", "run_speed_test", {}, "Speed: 0.3 Mbps (very poor)"),
    ],
    "names tried out": lambda i: [
        (
            "",
            "find_user",
            {"first": NAMES[i % 11], "last": "Weber", "zip": "20155"},
            "Error: user not found",
        )
    ],
    "declined in turn": lambda i: [
        (
            "",
            "pay",
            {"order": "W2", "method": ("card_1", "card_2", "gift_3")[i % 3]},
            f"Error: {('card_1', 'card_2', 'gift_3')[i % 3]} was declined",
        )
    ],
    "a queue without end": lambda i: [
        (
            "",
            "transfer_to_agent",
            {"summary": "refund"},
            f"No agent is free. Your position: {4 + i % 2}",
        )
    ],
    "the code is wrong": lambda i: [
        ("", "send_code", {"user": "u1"}, "A code was sent."),
        (
            "",
            "verify_code",
            {"user": "u1", "code": str(100000 + 777 * i)},
            "The code is wrong or expired.",
        ),
    ],
    "coupons": lambda i: [
        (
            "",
            "apply_coupon",
            {"cart": "c9", "code": f"{WORDS[i % 11].upper()}{i}"},
            '{"applied": false, "total": 89.90}',
        )
    ],
    "announced, not done": lambda i: [(APOLOGIES[i % 4], "Any news?")],
    "two dates in turn": lambda i: [
        ("", "search_flights", {"from": "JFK", "to": "SEA", "date": f"2025-05-{20 + i % 2}"}, "[]")
    ],
    "in and out of the cart": _cycle(
        [
            (
                "",
                "add_item",
                {"cart": "c1", "item": "lamp"},
                '{"cart": "c1", "items": ["chair", "lamp"]}',
            )
        ],
        [("", "remove_item", {"cart": "c1", "item": "lamp"}, '{"cart": "c1", "items": ["chair"]}')],
    ),
    # research
    "pages that wrap around": lambda i: [("", "list_results", {"page": i + 1}, page(i % 3))],
    "the same hits, other order": lambda i: [
        (
            "",
            "web_search",
            {"query": f"{TOPICS[i % 11]} fjord boats history"},
            "\n".join(HITS[i % 3 :] + HITS[: i % 3]),
        )
    ],
    "consent without end": _cycle(
        [
            (
                "",
                "open_page",
                {"url": "https://news.test/a"},
                "We value your privacy. Accept cookies to go on.",
            )
        ],
        [("", "click", {"element": "Accept"}, "We value your privacy. Accept cookies to go on.")],
    ),
    "the end of the page": lambda i: [
        (
            "",
            "page_down",
            {},
            f"You are at the end of the page. Ad: {WORDS[i % 11]} {NAMES[i % 11]} sale",
        )
    ],
    "a helper that cannot": lambda i: [
        (
            "",
            "ask_surfer",
            {
                "request": f"Please find the {('date', 'day', 'exact date')[i % 3]} of "
                f"the {('opening', 'first night')[i % 2]}"
            },
            ("I could not find it.", "The page does not give it.", "No luck, it is not there.")[
                i % 3
            ],
        )
    ],
    "computed once more": lambda i: [
        ("", "python", {"code": f"a{i} = sum(range({i % 2}, 101))\nprint(a{i})"}, "5050")
    ],
    "blocked everywhere": lambda i: [
        (
            "",
            "fetch",
            {"url": f"https://{WORDS[i % 11]}.test/{NAMES[i % 11]}"},
            f"403 Forbidden. Ray ID {i}c4f{i}a77",
        )
    ],
    "years in turn": lambda i: [
        (
            "",
            "search_archive",
            {"query": "harbour fire", "year": 1919 + i % 4},
            "No articles match.",
        )
    ],
    "no snapshot": lambda i: [
        (
            "",
            "wayback",
            {"url": "old.test", "time": f"20{10 + i}0101"},
            f"No snapshot near 20{10 + i}0101.",
        )
    ],
    "plan after plan": lambda i: [(PLANS[i % 3], None)],
    "to and fro between pages": _cycle(
        [("", "open_page", {"url": "https://a.test/list"}, page(4))], [("", "go_back", {}, page(5))]
    ),
    "broken downloads": lambda i: [
        ("", "download", {"url": f"https://mirror{i}.test/data.zip"}, f"saved data{i}.zip, 4 MB"),
        ("", "unzip", {"file": f"data{i}.zip"}, "End-of-central-directory signature not found"),
    ],
}

INNOCENTS: Mapping[str, Callable[[int], Round]] = {
    # code
    "one fix per file": lambda i: [
        (
            "",
            "edit_file",
            {
                "path": f"src/{WORDS[i % 11]}.py",
                "old_text": f"import {NAMES[i % 11]}",
                "new_text": "pass",
            },
            "ok",
        )
    ],
    "package by package": lambda i: [
        sh(f"pytest -q packages/{WORDS[i % 11]}", f"{10 + 3 * i} passed in {i}.2s")
    ],
    "a bisection": lambda i: [
        sh(
            f"git bisect {('bad', 'good')[i % 2]}",
            f"Bisecting: {700 >> i} revisions left\n[{i}ab{i}] {page(i)[:40]}",
        ),
        sh(
            "pytest -q tests/test_x.py",
            ("1 failed\nFAILED tests/test_x.py::test_x - KeyError", "1 passed")[i % 2],
        ),
    ],
    "a rename in many files": lambda i: [
        sh(f"sed -i 's/old_name/new_name/g' lib/{WORDS[i % 11]}.c", "")
    ],
    "a long file in parts": lambda i: [
        (
            "",
            "str_replace_editor",
            {"command": "view", "path": "/w/big.py", "view_range": [100 * i + 1, 100 * i + 100]},
            "Here's the result of running `cat -n`:\n" + page(i),
        )
    ],
    "a pipeline that moves on": lambda i: [
        sh("gh run view 9", f"stage {i + 1} of 12 {WORDS[i % 11]}: running, {i * 9} %")
    ],
    "fewer failures each time": lambda i: [
        ("", "edit_file", {"path": f"src/m{i}.py", "old_text": f"a{i}", "new_text": f"b{i}"}, "ok"),
        sh(
            "pytest -q",
            f"{12 - i} failed, {i} passed\n"
            f"FAILED tests/test_{WORDS[i % 11]}.py::test_it - TypeError: missing",
        ),
    ],
    "the history of many files": lambda i: [
        sh(f"git log --oneline -3 {WORDS[i % 11]}.py", f"{i}a1 {page(i)[:60]}")
    ],
    "a parameter swept": lambda i: [
        sh(
            f"python bench.py --size {2**i}",
            f"size {2**i}: {3.1 * 1.9**i:.2f} ms, {900 - 31 * i} MB/s",
        )
    ],
    "migrations": lambda i: [
        sh(f"manage migrate app 00{10 + i}", f"Applying app.00{10 + i}_{WORDS[i % 11]}... OK")
    ],
    "measured with and without": lambda i: [
        sh(
            f"FLAG={i % 2} python measure.py",
            f"run {i}: {120 + 17 * (i % 2) + 3 * i} requests, p99 {40 + 5 * i} ms",
        )
    ],
    "temporary files removed": lambda i: [sh(f"rm /tmp/{WORDS[i % 11]}_{NAMES[i % 11]}.log", "")],
    # dialogue
    "many orders": lambda i: [
        (
            "",
            "get_order",
            {"order": f"W{7001 + 13 * i}"},
            f'{{"status": "delivered", "items": ["{WORDS[i % 11]}"], "total": {20 + 7 * i}}}',
        )
    ],
    "many questions answered": lambda i: [
        (
            f"The {WORDS[i % 11]} model costs {20 + i} euros; {NAMES[i % 11]} has its colours.",
            f"And what about {TOPICS[i % 11]}?",
        )
    ],
    "read out on request": lambda i: [
        (f"Step {i + 1}: open {WORDS[i % 11]} and choose {NAMES[i % 11]}.", "Done, next.")
    ],
    "a form filled in": lambda i: [
        (
            f"Thank you. What is your {TOPICS[i % 11].split()[-1]} {WORDS[i % 11]}?",
            f"It is {NAMES[i % 11]} {i * 31}.",
        )
    ],
    "seats on many flights": lambda i: [
        (
            "",
            "get_seats",
            {"flight": f"HAT{100 + i}"},
            f'{{"economy": {3 + i}, "business": {9 - i % 9}}}',
        )
    ],
    "a cart that grows": lambda i: [
        (
            "",
            "add_item",
            {"cart": "c1", "item": WORDS[i % 11]},
            f'{{"items": {i + 1}, "total": {12.5 * (i + 1)}}}',
        )
    ],
    "guided through a phone": lambda i: [
        (
            "",
            "check_status",
            {},
            f"airplane mode {('on', 'off')[i % 2]}, signal {i % 5} bars, {WORDS[i % 11]} network",
        ),
        (f"Now set {WORDS[i % 11]} and tell me what you see.", f"It says {NAMES[i % 11]} {i}."),
    ],
    "refunds one by one": lambda i: [
        ("", "refund", {"order": f"W{300 + i}", "amount": 9 + i}, "ok")
    ],
    "patience": lambda i: [
        (
            f"Take your time, I am here. ({WORDS[i % 11]})",
            f"I am looking in the {NAMES[i % 11]} drawer.",
        )
    ],
    "filters that narrow": lambda i: [
        (
            "",
            "search_products",
            {"q": "lamp", "filters": WORDS[: i + 1]},
            f"{440 >> (i // 2)} products: {page(i)[:70]}",
        )
    ],
    "a user who changes his mind": lambda i: [
        (
            "",
            "set_seat",
            {"seat": ("window", "aisle")[i % 2]},
            f"Seat set to {('window', 'aisle')[i % 2]}.",
        ),
        ("Done. Anything else?", f"Sorry, {NAMES[i % 11]} wants the other one after all."),
    ],
    "identity in parts": lambda i: [
        ("", "verify", {"field": WORDS[i % 11], "value": f"{NAMES[i % 11]}{i}"}, "match")
    ],
    # research
    "many searches": lambda i: [("", "web_search", {"query": TOPICS[i % 11]}, page(i))],
    "page by page": lambda i: [("", "list_results", {"page": i + 1}, page(i))],
    "links, some dead": lambda i: [
        (
            "",
            "open_page",
            {"url": f"https://{WORDS[i % 11]}.test/"},
            "404 Not Found" if i in (3, 4, 5) else page(i),
        )
    ],
    "values computed": lambda i: [
        ("", "python", {"code": f"print(f({17 * i + 3}))"}, f"{(17 * i + 3) ** 2 % 997}.{i}")
    ],
    "down a long page": lambda i: [("", "page_down", {}, page(i))],
    "rows by key": lambda i: [
        (
            "",
            "get_row",
            {"table": "cities", "key": NAMES[i % 11]},
            f'{{"population": {1000 + 977 * i}, "area": {40 + i}}}',
        )
    ],
    "sentences translated": lambda i: [
        ("", "translate", {"text": page(i)[:50], "to": "de"}, page(i + 3)[:60])
    ],
    "a job with progress": lambda i: [
        ("", "job_state", {"id": "j1"}, f'{{"state": "running", "done": {i * 9}}}')
    ],
    "a queue that moves": lambda i: [
        ("", "queue_position", {"ticket": "t7"}, f"You are number {12 - i} in line.")
    ],
    "a helper asked for much": lambda i: [
        (
            "",
            "ask_surfer",
            {"request": f"Find the year of {TOPICS[i % 11]}"},
            f"It is {1700 + 23 * i}, by {WORDS[i % 11]}.",
        )
    ],
    "mail by mail": lambda i: [
        ("", "read_mail", {"id": 500 + i}, f"From {NAMES[i % 11]}: {page(i)[:80]}")
    ],
    "a price that moves": lambda i: [
        ("", "get_quote", {"symbol": "ABC"}, f"ABC {101.3 + 1.7 * i:.2f} at 10:{10 + i}")
    ],
}


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
