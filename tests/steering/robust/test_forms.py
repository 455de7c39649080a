"""Loops and innocent work in the forms of many agents: tools, languages, editors, pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.core.decision_settings import Policy
from gateway.core.fsm import FSMState
from gateway.steering.runs_of_transcript import ConversationFold

Call = tuple[str, object, object]
NAMES = "anna bert clara dora emil frida gustav hanna ida jonas karla ludwig".split()  # noqa: SIM905 - a list of words reads best as words
REPETITIONS = 4


def message(call: Call, number: int) -> list[dict]:
    """A call and its result as chat messages; a result of parts holds a picture."""
    name, arguments, result = call
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": name, "arguments": text}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def alarms(calls: Sequence[Call]) -> set[str]:
    """Every signal that shows while the calls are made, behind a quiet opening."""
    opening: list[Call] = [
        ("list_dir", {"path": "."}, "README.md src tests"),
        ("read_file", {"path": "README.md"}, "A tool that turns invoices into ledgers."),
    ]
    messages: list[dict] = [{"role": "user", "content": "Do the task."}]
    for number, call in enumerate([*opening, *calls]):
        messages.extend(message(call, number))
    outcomes = ConversationFold(Policy()).extend(messages)
    found = {name for outcome in outcomes for name in outcome.readings.fired}
    hard = {FSMState.SLOW, FSMState.SKIP}
    return found | {outcome.state.value for outcome in outcomes if outcome.state in hard}


def again(name: str, arguments: Sequence[object], results: Sequence[object]) -> list[Call]:
    """One tool, with arguments and results taken in turn, first call and repetitions."""
    rounds = range(max(len(arguments), REPETITIONS + 1))
    return [(name, arguments[i % len(arguments)], results[i % len(results)]) for i in rounds]


def to_and_fro(name: str, first: object, second: object, result: str) -> list[Call]:
    """Two calls in turn, each repeated."""
    return again(name, [first, second] * (REPETITIONS + 1), [result])


LOOPS: dict[str, list[Call]] = {
    "a trace id that differs": again(
        "search_orders",
        [
            {"customer": "C7", "trace_id": f"{n}f2b8c1e-0000-4000-8000-00000000000{n}"}
            for n in range(5)
        ],
        ["Two open orders: a lamp and a chair."],
    ),
    "a build log in brackets": again(
        "bash",
        [{"command": "mvn -q test"}],
        [
            f"[INFO] Total time: {n}.3 s\n[ERROR] /app/src/A.java:[12,8] cannot find symbol\n"
            "[ERROR] Failed to execute goal compile\n[ERROR] [Help 1] http://maven.test/help"
            for n in range(5)
        ],
    ),
    "output that grows under one error": again(
        "bash",
        [{"command": f"python train.py --try {n}"} for n in range(5)],
        ["epoch done\n" * n + "ValueError: shape mismatch\n" * n for n in range(1, 6)],
    ),
    "a request id that differs": again(
        "mcp__web__search",
        [{"query": "opening hours", "count": 5}],
        [f'{{"id": "3f2b8c1e-0000-4000-8000-00000000000{i}", "hits": []}}' for i in range(5)],
    ),
    "times that differ": again(
        "run_query",
        [{"q": "active users"}],
        [f"[2025-03-0{i}T1{i}:2{i}:00Z] 0 rows ({i}.12 sec)" for i in range(1, 6)],
    ),
    "another language": again("查询天气", [{"城市": "北京"}], ["晴,气温 25 度"]),
    "a picture that stays": again(
        "look", [{}], [[{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]]
    ),
    "keys in another order": again(
        "get_issue", ['{"repo": "x", "number": 7}', '{"number":7,"repo":"x"}'], ['{"open": true}']
    ),
    "a search put otherwise": again(
        "web_search",
        [
            {"query": "how to configure retry backoff in the client"},
            {"query": "client retry backoff configuration"},
            {"query": "configuring retry backoff of client", "max_results": 20},
            {"query": "retry backoff config for the client"},
            {"query": "client configuration of retry backoff"},
        ],
        ["1. Start - docs.test/start\n2. Install - docs.test/install\n3. FAQ - docs.test/faq"],
    ),
    "a command put otherwise": again(
        "shell",
        [
            {"command": ["bash", "-lc", command]}
            for command in (
                'grep -rn "load" src/',
                "grep -rn 'load' src",
                "grep -n -r load ./src/ | head -20",
            )
        ],
        [""],
    ),
    "an editor in camel case": to_and_fro(
        "replaceInFile",
        {"filePath": "a.ts", "oldString": "t = 30", "newString": "t = 60"},
        {"filePath": "a.ts", "oldString": "t = 60", "newString": "t = 30"},
        "Done",
    ),
    "a stream editor": to_and_fro(
        "bash",
        {"command": "sed -i 's/t=30/t=60/' app.cfg"},
        {"command": "sed -i 's/t=60/t=30/' app.cfg"},
        "",
    ),
    "a here-document": to_and_fro(
        "bash",
        {"command": "cat > a.py <<'EOF'\nx = 1\nEOF"},
        {"command": "cat <<EOF > a.py\nx = 2\nEOF"},
        "",
    ),
    "search and replace blocks": to_and_fro(
        "replace_in_file",
        {"path": "m.js", "diff": "<<<<<<< SEARCH\na + b\n=======\na - b\n>>>>>>> REPLACE"},
        {"path": "m.js", "diff": "<<<<<<< SEARCH\na - b\n=======\na + b\n>>>>>>> REPLACE"},
        "updated",
    ),
    "a patch in a shell": to_and_fro(
        "shell",
        {"command": ["apply_patch", "*** Begin Patch\n*** Update File: q.py\n-x = 1\n+x = 2\n"]},
        {"command": ["apply_patch", "*** Begin Patch\n*** Update File: q.py\n-x = 2\n+x = 1\n"]},
        "Success",
    ),
    "several edits at once": to_and_fro(
        "mcp__filesystem__edit_file",
        {"path": "/c.yml", "edits": [{"oldText": "max: 5", "newText": "max: 9"}]},
        {"path": "/c.yml", "edits": [{"oldText": "max: 9", "newText": "max: 5"}]},
        "ok",
    ),
    "edits that do not apply": again(
        "edit",
        [{"path": "z.py", "old_str": f"def {name}():", "new_str": "x"} for name in NAMES[:5]],
        ["String to replace not found in file."],
    ),
    "a status in words": again(
        "http_request",
        [{"url": f"https://api.test/{name}"} for name in NAMES[:5]],
        ['HTTP 403 Forbidden\n\n{"message": "Missing scope"}'],
    ),
    "a status in an answer": again(
        "api_call",
        [{"path": f"/{name}"} for name in NAMES[:5]],
        ['{"message": "Invalid API key", "statusCode": 401}'],
    ),
    "an error in German": again(
        "datei_lesen",
        [{"pfad": f"/daten/{name}.csv"} for name in NAMES[:5]],
        ["Fehler: Zugriff verweigert."],
    ),
    "a question that is no sign of work": again(
        "bash",
        [{"command": "docker compose up -d"}],
        ["Cannot connect to the Docker daemon. Is the docker daemon running?"],
    ),
    "a test at another place": again(
        "run_terminal_cmd",
        [{"command": f"gcc {name}.c"} for name in NAMES[:5]],
        [f"{name}.c:1:10: fatal error: ssl.h: No such file" for name in NAMES[:5]],
    ),
    "one file by several commands": [
        ("bash", {"command": f"{command}src/a.py"}, "\n".join(f"def {n}(x): ..." for n in NAMES))
        for command in ("cat ", "cat ./", "head -99 ", "less ", "nl ")
    ],
}


@pytest.mark.parametrize("form", LOOPS)
def test_a_loop_is_found_in_any_form(form: str) -> None:
    """What differs only in wording, order, times and ids is the same move."""
    assert alarms(LOOPS[form])


def each(name: str, arguments: Sequence[object], result: object) -> list[Call]:
    """One call per set of arguments, all with one result."""
    return [(name, given, result) for given in arguments]


def picture(number: int) -> list[dict]:
    """A result that is a picture."""
    url = f"data:image/png;base64,{number}"
    return [{"type": "image_url", "image_url": {"url": url}}]


def edits_and(command: str, results: Sequence[str]) -> list[Call]:
    """A new edit of one file before each run of a command."""
    calls: list[Call] = []
    for name, result in zip(NAMES, results, strict=False):
        edit = {"file_path": "src/core.py", "old_string": f"# {name}", "new_string": f"{name}()"}
        calls += [("Edit", edit, "updated"), ("Bash", {"command": command}, result)]
    return calls


INNOCENTS: dict[str, list[Call]] = {
    "a job not done": again("check_job", [{"id": "j"}] * 9, ['{"done": false}']),
    "a job in French": again("etat", [{"id": "7"}] * 9, ["La tâche est en cours."]),
    "a job in Chinese": again("查询进度", [{"任务": "7"}] * 9, ["任务正在处理中"]),
    "a deployment": again("status", [{}] * 9, ['"CREATE_IN_PROGRESS"']),
    "sleeping and looking": again(
        "bash", [{"command": "sleep 60; squeue"}] * 9, ["4242 gpu train PD 0:00 (Priority)"]
    ),
    "waiting": again("wait", [{"seconds": 30}] * 9, ["Waited 30 seconds."]),
    "an empty inbox": again("check_inbox", [{}] * 9, ["No new messages."]),
    "a quota": again("call_api", [{"q": "x"}] * 4, ["Quota exceeded for metric 'Queries'"]),
    "a rate in Chinese": again("call_api", [{"q": "x"}] * 4, ["请求过于频繁,请稍后再试。"]),
    "scrolling by pictures": [("scroll", {"direction": "down"}, picture(i)) for i in range(9)],
    "clicks": each("click", [{"element": i} for i in range(12)], "Clicked."),
    "a form": each(
        "browser_type",
        [{"selector": f"input[name={n}]", "text": n, "submit": False} for n in NAMES],
        "Typed text into field.",
    ),
    "rows": each("update_row", [{"id": i, "status": "done"} for i in range(15)], "1 row updated"),
    "one mail per person": each(
        "send_email",
        [
            {"to": f"{n}@example.test", "body": f"Dear {n}, you are invited to our workshop."}
            for n in NAMES
        ],
        "Email sent.",
    ),
    "places that are taken": each(
        "check_availability",
        [{"service": "haircut", "place": "downtown", "stylist": n, "day": "monday"} for n in NAMES],
        "fully booked",
    ),
    "files of one template": each(
        "create_file", [{"path": f"{n}/__init__.py", "content": "#"} for n in NAMES], "ok"
    ),
    "files that are nearly equal": [
        ("read_file", {"path": f"k8s/{n}.yaml"}, f"kind: Deployment\nname: {n}\nreplicas: 2")
        for n in NAMES
    ],
    "a green build after each edit": edits_and("npm run build", ["built in 1.2s"] * 9),
    "a look around after each edit": edits_and("git status --short", [" M src/core.py"] * 9),
    "another message each time": edits_and(
        "pytest -x", [f"E   KeyError: '{n}'\nFAILED t.py::test_a\n1 failed" for n in NAMES]
    ),
    "one failing test less each time": edits_and(
        "go test ./...",
        ["--- FAIL: TestA (0.00s)\n" * left + "FAIL\tpkg\t0.01s" for left in (5, 4, 3, 2, 1)],
    ),
    "another compiler error each time": edits_and(
        "cargo build",
        [f"error: no `{n}`\n --> m.rs:3:5\nerror: could not compile `app`" for n in NAMES[:6]],
    ),
    "a check after each deployment": [
        call
        for n in NAMES[:8]
        for call in (
            ("deploy_service", {"service": n}, "deployed"),
            ("get_cluster_health", {}, '{"status": "green", "nodes": 3}'),
        )
    ],
    "a job in a word of its own": again(
        "describe_job", [{"job": "j-9"}] * 20, ['{"job": "j-9", "status": "ACTIVE"}']
    ),
    "a job in escaped letters": again(
        "durum", [{"is": 7}] * 20, [json.dumps({"durum": "haz\u0131rlan\u0131yor"})]
    ),
    "looking again after a while": [
        call
        for _ in range(20)
        for call in (
            ("wait", {"seconds": 20}, "ok"),
            ("get_replicas", {"name": "web"}, '{"ready": 0, "desired": 3}'),
        )
    ],
    "a service that is not up yet": [
        call
        for _ in range(9)
        for call in (
            ("bash", {"command": "sleep 5"}, ""),
            ("bash", {"command": "curl -s :80"}, "curl: (7) Connection refused"),
        )
    ],
    "a search for the commit": [
        call
        for n in range(9)
        for call in (
            ("bash", {"command": "git bisect bad"}, f"Bisecting: {n} revisions left [{n}ab]"),
            ("bash", {"command": "pytest t.py"}, "1 failed" if n % 3 else "1 passed"),
        )
    ],
    "a queue that moves": [
        ("queue_position", {"ticket": "T5"}, f"Position in queue: {n}") for n in range(200, 0, -1)
    ],
    "files of one content": [
        ("read_file", {"path": f"{n}/LICENSE"}, " ".join(NAMES) * 2) for n in NAMES
    ],
}


@pytest.mark.parametrize("form", INNOCENTS)
def test_work_that_looks_alike_raises_no_alarm(form: str) -> None:
    """Waiting, filling in, writing to each of many, and building on are not loops."""
    assert alarms(INNOCENTS[form]) == set()


MONOLOGUES = {
    "Chinese": (
        "在修改之前,我需要先考虑导入流程的整体设计,因为各阶段的顺序决定了缓存是否有效。",
        "我需要在修改之前先考虑导入流程的整体设计,因为各个阶段的顺序决定了缓存是否有效。",
    ),
    "short": ("I will now proceed with the task.",) * 2,
}


@pytest.mark.parametrize("language", MONOLOGUES)
@pytest.mark.parametrize("nudge", [None, "Please continue.", "You did not call a tool. Use one."])
def test_a_monologue_is_found_in_any_form(language: str, nudge: str | None) -> None:
    """Words instead of moves, whatever the script, and whoever says to go on."""
    messages: list[dict] = [{"role": "user", "content": "Do the task."}]
    for turn in range(REPETITIONS + 1):
        messages.append({"role": "assistant", "content": MONOLOGUES[language][turn % 2]})
        if nudge:
            messages.append({"role": "user", "content": nudge})
    messages += message(("search", {"q": "x"}, "y"), 0)
    outcomes = ConversationFold(Policy()).extend(messages)
    assert any("streak" in outcome.readings.fired for outcome in outcomes)


def test_a_chat_that_repeats_itself_is_heard() -> None:
    """Without tools, and whatever the user says: the same words again are trouble and an alarm."""
    messages: list[dict] = [{"role": "user", "content": "Where is my parcel?"}]
    for turn in range(7):
        text = "I am sorry about the delay. Could you give me the number of your order, please?"
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": f"I wrote it above, it is {100 + turn}."})
    outcomes = ConversationFold(Policy()).extend(messages)
    assert [outcome.observed.trouble for outcome in outcomes[1:]] == ["was said again"] * 6
    assert "streak" in outcomes[4].readings.fired
    assert outcomes[-1].difficulty > 0.6


def test_polling_that_never_ends_is_trouble_in_the_end() -> None:
    """Twenty equal answers are patience; after thirty the run is neither easy nor in FAST."""
    calls: list[Call] = [("job_status", {"id": 4}, '{"status": "pending"}')] * 32
    messages: list[dict] = [{"role": "user", "content": "Wait for the job."}]
    for number, call in enumerate(calls):
        messages.extend(message(call, number))
    outcomes = ConversationFold(Policy()).extend(messages)
    assert all(outcome.observed.waits and not outcome.readings.fired for outcome in outcomes[:20])
    assert outcomes[29].observed.trouble == "gave the same result"
    assert outcomes[29].difficulty > 0.6
    assert outcomes[29].state is not FSMState.FAST


def test_a_conversation_is_no_monologue() -> None:
    """A reply of one form to each of many users' wishes is an answer, in one run as in many."""
    messages: list[dict] = [{"role": "user", "content": "Book for anna."}]
    for name in NAMES:
        text = f"I have booked the seat for {name}. Is there anything else I can help you with?"
        messages += message(("book", {"guest": name}, '{"ok": true}'), len(messages))
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": f"Yes, now for the one after {name}."})
    for boundary in ("settled_answer", "never"):
        outcomes = ConversationFold(Policy(run_boundary=boundary)).extend(messages)
        assert {fired for o in outcomes for fired in o.readings.fired} <= {"call_count"}


def test_a_picture_in_a_message_of_its_own_belongs_to_the_step() -> None:
    """Chat clients that may not put pictures into results send them behind."""
    messages: list[dict] = [{"role": "user", "content": "Scroll."}]
    for number in range(8):
        messages += message(("scroll", {"direction": "down"}, "Scrolled."), number)
        messages.append({"role": "user", "content": picture(number)})
    fold = ConversationFold(Policy())
    online = [o for end in range(1, len(messages) + 1) for o in fold.extend(messages[:end])]
    outcomes = ConversationFold(Policy()).extend(messages)
    assert len({o.step.actions[0].image for o in outcomes}) == 8
    assert not any(o.readings.fired for o in outcomes)
    assert online[-1] == outcomes[-1]
