"""`gateway wrap` as a process: what the command sees, how it ends, and what is told of it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateway.budget_interface import Amounts
from gateway.cli import main
from gateway.errors import ConfigError
from gateway.features.budgets.accounts import Account
from gateway.features.wrap.own_gateway import used_line, wrap_budget
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.processes import (
    START_S,
    GatewayProcess,
    environment_of_a_new_user,
    run,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WAIT_S = START_S

AGENT = """
import json, os, sys, urllib.request
messages = [{"role": "user", "content": "repair the test"}]
for _ in range(int(sys.argv[1])):
    body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": [{"type": "function",
        "function": {"name": "run", "parameters": {"type": "object"}}}]}).encode()
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
        {"content-type": "application/json", "authorization": "Bearer sk-mine"})
    reply = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]
    messages.append(reply)
    for call in reply.get("tool_calls") or []:
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "1 failed"})
print("said", reply["content"])
sys.exit(int(sys.argv[2]))
"""

TERMINAL = """
import os, signal, sys, time
got = []
for name in ("SIGINT", "SIGTERM", "SIGWINCH"):
    signal.signal(getattr(signal, name), lambda number, _: got.append(number))
size = os.get_terminal_size()
print("tty", os.isatty(0) and os.isatty(1) and os.isatty(2), size.columns, size.lines, flush=True)
print("group", os.getpgrp() == os.tcgetpgrp(0), flush=True)
print("default", signal.getsignal(signal.SIGPIPE) is not None, "ready", flush=True)
while signal.SIGTERM not in got:
    time.sleep(0.01)
print("signals", sorted(set(got)), got.count(signal.SIGINT), flush=True)
print("now", os.get_terminal_size().columns, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def environment(tmp_path: Path, upstream: ScriptedUpstream) -> dict[str, str]:
    """A new user, whose provider is the scripted upstream."""
    return environment_of_a_new_user(tmp_path, upstream.base_url)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gateway", "wrap", *words]


def wrapped(
    tmp_path: Path, upstream: ScriptedUpstream, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """`gateway wrap` with these words, in an empty folder."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return run("wrap", *words, directory=work, env={**environment(tmp_path, upstream), **more})


def test_an_agent_is_steered_and_summed_up(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Its own output and status, a summary of its run, no file in its folder; later wraps and
    `gateway runs` find the run; its OPENAI_BASE_URL is where the gateway sends its requests."""
    agent = [sys.executable, "-c", AGENT]
    ended = wrapped(tmp_path, upstream, "--", *agent, "1", "3")
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("said ")
    assert {r.header("authorization") for r in upstream.requests} == {"Bearer sk-mine"}
    first, *lines = ended.stderr.splitlines()
    assert "is steered; see it at http://127.0.0.1:" in first
    assert lines[0].startswith("gateway: 1 run, 0 steps, ")
    told = "\n".join(lines)
    for part in ("repair the test", "states   INIT 1, now END", "universal rules", "gpt-4o 1"):
        assert part in told, told
    run_id = lines[1].split()[0]
    assert f"gateway dashboard {run_id}" in told
    assert not list((tmp_path / "work").iterdir())
    env = environment(tmp_path, upstream)
    shown = run("runs", "list", "--json", directory=tmp_path / "work", env=env)
    assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == [run_id]


def test_no_call_is_said_with_what_the_client_reads(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A client that is known by its name may have its provider from elsewhere; so may any other."""
    for name, reads in (("goose", "goose/config.yaml"), ("my-agent", "a config of its own")):
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
        ended = wrapped(tmp_path, upstream, "--", os.path.relpath(program, tmp_path / "work"))
        assert ended.returncode == 0
        last = ended.stderr.splitlines()[-1]
        assert f"{name} made no call through the gateway" in last
        assert reads in last


def test_a_pilot_is_declared_and_shown(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """A new user's: declared once something was wrapped; the next summary has its line; what it
    cannot do is said with the reason."""
    agent, env = [sys.executable, "-c", AGENT], environment(tmp_path, upstream)

    def pilot(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run("pilot", *words, directory=tmp_path / "work", env={**env, **more})

    wrapped(tmp_path, upstream, "--", *agent, "1", "0")
    config = tmp_path / "own.yaml"
    config.write_text("experiment: {id: mine}")
    assert "sets experiment.id (mine)" in pilot("--config", str(config)).stderr
    assert "there is none yet" in pilot("stop").stderr
    assert "a fair coin steers half" in pilot("start", "--runs", "20", "--yes").stdout
    ended = wrapped(tmp_path, upstream, "--outcome-from", "exit", "--", *agent, "1", "0")
    first, *lines = ended.stderr.splitlines()
    assert re.search("is steered or only watched, by the coin of pilot-.* for all runs;", first)
    line = next(each for each in lines if each.startswith("pilot: "))
    assert "running; 1 of 20 runs have an outcome; verdict: more runs needed" in line
    assert "verdict: more runs needed" in (refused := pilot("apply")).stderr
    assert refused.returncode == 2
    assert "applied: all runs are only watched" in pilot("apply", "shadow").stdout
    later = wrapped(tmp_path, upstream, "--mode", "on", "--", *agent, "1", "0").stderr
    assert "is only watched, nothing is changed" in later.splitlines()[0]
    assert "only watched" not in pilot("stop").stdout


def test_the_summary_dates_old_prices(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Those of a list kept beside the database of wraps, once the dollars are."""
    agent = [sys.executable, "-c", AGENT]
    assert wrapped(tmp_path, upstream, "--", *agent, "1", "0").returncode == 0
    (database,) = tmp_path.rglob("gateway.db")
    about = '{"date": "2020-01-02", "source": "mine"}\n{}'
    Path(f"{database}-prices.json").write_text(about)
    said = wrapped(tmp_path, upstream, "--", *agent, "1", "0").stderr
    assert "Dollars at prices of 2020-01-02, over 60 days old: gateway prices update." in said
    assert "Dollars at" not in wrapped(tmp_path, upstream, "--", "true").stderr


def test_shadow_changes_no_byte(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """What the agent sent is what leaves, and the JSON summary says what it would have read."""
    agent = [sys.executable, "-c", AGENT]
    ended = wrapped(tmp_path, upstream, "--mode", "shadow", "--json", "--", *agent, "1", "0")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stderr)
    assert told["exit_status"] == 0
    [run] = told["runs"]
    assert run["mode"] == "shadow"
    assert run["guidance"]
    assert not any(text["applied"] for text in run["guidance"])
    assert [m["role"] for m in upstream.requests[0].fields["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("check", "status", "outcome"),
    [
        ("exit", 0, "success"),
        ("exit", 3, "failure"),
        ('echo checked; test -n "$GATEWAY_RUN"', 3, "success"),
        ("exit 4", 0, "failure"),
    ],
)
def test_a_check_reports_the_outcome(
    check: str, status: int, outcome: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The command's own exit status, or that of a check after it; neither changes what it says."""
    agent = [sys.executable, "-c", AGENT, "1", str(status)]
    ended = wrapped(tmp_path, upstream, "--json", "--outcome-from", check, "--", *agent)
    assert ended.returncode == status, ended.stderr
    assert "checked" not in ended.stdout
    [run] = json.loads(ended.stderr.splitlines()[-1])["runs"]
    assert run["outcome"] == outcome


def test_a_list_of_prices_that_is_kept_is_named(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """With its date, before the command runs: that may have written the list."""
    kept = tmp_path / "kept.db-prices.json"
    about = {"date": "2026-06-11", "source": "the installed LiteLLM"}
    kept.write_text(f"{json.dumps(about)}\n{{}}")
    storage = {"GATEWAY_STORAGE__PATH": str(tmp_path / "kept.db")}
    agent = [sys.executable, "-c", AGENT, "1", "0"]
    for words, shown in (((), True), (("--json",), False)):
        ended = wrapped(tmp_path, upstream, *words, "--", *agent, **storage)
        line = f"gateway: prices of 2026-06-11, from the list in {kept}"
        assert (ended.stderr.splitlines()[0] == line) is shown, ended.stderr
    kept.unlink()
    ended = wrapped(tmp_path, upstream, "--", *agent, **storage)
    assert "the list in" not in ended.stderr


def test_a_limit_ends_the_calls(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """After two calls the agent gets an answer that says so, which no model was asked for."""
    agent = [sys.executable, "-c", AGENT, "3", "0"]
    ended = wrapped(tmp_path, upstream, "--stop-after", "2 calls", "--budget", "$5", "--", *agent)
    assert ended.returncode == 0, ended.stderr
    assert len(upstream.requests) == 2
    assert "said Stopped by the gateway" in ended.stdout
    assert "budget: " in ended.stderr
    assert "2 calls of 2 calls; used up, further calls were not sent" in ended.stderr
    assert "budget: $5.00, 2 calls; a model of unknown price counts as $3.00" in ended.stderr
    assert "stopped by its limit: 2 of the 2-call" in ended.stderr
    assert ": 2 of the 2-call budget is used.\n" in ended.stderr


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ("", "401 from the provider"),
        ("http://127.0.0.1:1/v1", "the provider cannot be reached"),
    ],
)
def test_the_summary_says_what_failed(
    base: str, reason: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A refusal with its status, and a provider that is down, for every repetition."""
    upstream.default = Reply("no", status=401)
    sends = f"""
import subprocess, sys
for _ in range(3):
    subprocess.run([sys.executable, "-c", {AGENT!r}, "1", "0"], stderr=subprocess.DEVNULL)
"""
    env = {"OPENAI_BASE_URL": base or upstream.base_url}
    ended = wrapped(tmp_path, upstream, "--", sys.executable, "-c", sends, **env)
    assert f"\n  3 calls failed: {reason}\n" in ended.stderr


GIVES_UP = """
import json, os, socket, time, urllib.parse
address = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "x"}]}).encode()
asked = f"POST /v1/chat/completions HTTP/1.1\\r\\nhost: {address.netloc}\\r\\n"
asked += f"authorization: Bearer sk-mine\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n"
with socket.create_connection((address.hostname, address.port)) as sent:
    sent.sendall(asked.encode() + body)
    while not os.path.exists("asked"):
        time.sleep(0.01)
"""


def test_a_call_that_the_command_gives_up_is_said_in_words(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """No name of the gateway's own stands in the summary."""

    def waits(_: ReceivedRequest) -> Reply:
        (tmp_path / "work" / "asked").touch()
        return Reply("late", first_byte_delay_s=WAIT_S)

    upstream.default = waits
    ended = wrapped(tmp_path, upstream, "--", sys.executable, "-c", GIVES_UP)
    assert "\n  1 call failed: given up by the command before the answer\n" in ended.stderr


HELPERS = """
import json, os, sys, urllib.request
def ask(number, **headers):
    body = {"model": "m", "messages": [{"role": "user", "content": f"{headers} {number}"}]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    head = {"content-type": "application/json", "user-agent": "opencode/1.18.33", **headers}
    asked = urllib.request.Request(url, json.dumps(body).encode(), head)
    return json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
main = {"x-session-id": "s"}
for number in range(4):
    print("main", ask(number, **main))
for name in ("a", "b"):
    for number in range(3):
        print(name, ask(number, **{"x-session-id": name, "x-parent-session-id": "s"}))
"""


def test_each_sub_agent_is_capped(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """The third call of each gets its report; the main agent makes as many as it likes."""
    agent = [sys.executable, "-c", HELPERS]
    ended = wrapped(tmp_path, upstream, "--sub-agents", "2", "--", *agent)
    assert ended.returncode == 0, ended.stderr
    assert len(upstream.requests) == 4 + 2 * 2
    reports = [line for line in ended.stdout.splitlines() if "Stopped by the gateway" in line]
    assert [line[0] for line in reports] == ["a", "b"]
    refused = wrapped(tmp_path, upstream, "--sub-agents", "0", "--", *agent)
    assert "wrap: --sub-agents: a number of calls from 1, not 0" in refused.stderr


def test_the_commands_of_the_summary_find_its_run(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Though another gateway runs on another database, and afterwards as well."""
    env = environment(tmp_path, upstream)
    other = {**env, "GATEWAY_STORAGE__PATH": str(tmp_path / "other.db")}
    with GatewayProcess(tmp_path, env=other) as gateway:
        ended = wrapped(tmp_path, upstream, "--", sys.executable, "-c", AGENT, "1", "0")
        [line] = [each for each in ended.stderr.splitlines() if "  page  " in each]
        words = shlex.split(line.split("page")[1])
        assert words[:2] == ["gateway", "dashboard"]
        pages = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=tmp_path / "work",
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert pages.stdout is not None
        try:
            page = pages.stdout.readline().strip()
            assert not page.startswith(gateway.url)
            assert "repair the test" in httpx.get(page, timeout=120).text
        finally:
            pages.terminate()
            pages.wait(WAIT_S)
            pages.stdout.close()


@pytest.mark.parametrize(
    ("budget", "stop_after", "limits"),
    [
        ("2.00", None, {"usd": 2.0}),
        (None, "30m", {"minutes": 30.0}),
        (None, "1.5h", {"minutes": 90.0}),
        ("$1", "50", {"usd": 1.0, "calls": 50}),
        (None, None, None),
    ],
)
def test_limits_are_read(
    budget: str | None, stop_after: str | None, limits: dict[str, float] | None
) -> None:
    """Dollars, times and numbers of calls; nothing else."""
    found = wrap_budget(budget, stop_after)
    assert (found and found.limits.given()) == limits
    for wrong in ({"budget": "much"}, {"budget": "0"}, {"stop_after": "5x"}, {"stop_after": "0"}):
        with pytest.raises(ConfigError, match="wrap: --"):
            wrap_budget(**{"budget": None, "stop_after": None, **wrong})


def test_the_summary_names_the_limit_of_an_account_that_was_deleted() -> None:
    """The budget's own, unless a person set another or none."""
    budget = wrap_budget("2.00", None)
    assert budget is not None
    account = Account(budget=budget.name, subject="default")
    line = used_line(account, budget, 0.0, stopped=True)
    assert line == "budget: $0 of $2.00; not enough left, further calls were not sent"
    taken = replace(account, leased=Amounts(usd=1.0))  # for calls that may never be made
    assert used_line(taken, budget, 0.0) == "budget: $0 of $2.00"
    raised = replace(account, limits={"usd": 3.0})
    assert used_line(raised, budget, 0.0) == "budget: $0 of $3.00"
    assert used_line(replace(account, lifted=True), budget, 0.0) == "budget: no limit"


def test_a_command_that_cannot_start(
    upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a shell: 127 when there is none, 126 when it cannot be executed; 2 without one."""
    missing = wrapped(tmp_path, upstream, "--quiet", "--", "no-such-agent")
    assert (missing.returncode, missing.stderr) == (
        127,
        "gateway: wrap: no-such-agent: command not found\n",
    )
    folder = wrapped(tmp_path, upstream, "--quiet", "--", str(tmp_path))
    assert (folder.returncode, folder.stderr) == (
        126,
        f"gateway: wrap: {tmp_path}: cannot be started: Permission denied\n",
    )
    said = wrapped(tmp_path, upstream, "--", str(tmp_path)).stderr
    assert "made no call" not in said
    for name, value in environment(tmp_path, upstream).items():
        monkeypatch.setenv(name, value)
    assert main(["wrap", "--"]) == 2
    assert main(["wrap", "--gateway", "--", "true"]) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is full")
def test_a_full_disk_changes_no_exit_status(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """The log's last lines are lost; the command's status and the summary are not."""
    log = tmp_path / "state" / "steering-gateway" / "wrap.log"
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    ended = wrapped(tmp_path, upstream, "--", sys.executable, "-c", AGENT, "1", "3", **state)
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False), ended.stderr
    assert "gateway: 1 run" in ended.stderr


def test_a_start_that_fails_tells_why(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Also to those who cannot read the log."""
    database = tmp_path / "state" / "steering-gateway" / "gateway.db"
    database.parent.mkdir(parents=True)
    database.write_text("no database, and longer than the head of one: " * 10)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    ended = wrapped(tmp_path, upstream, "--", "true", **state)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith(f"gateway: the gateway cannot start: {str(database)!r}")


def test_a_gateway_that_runs_is_used(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Named by --gateway, found by it, or already in the agent's variables."""
    agent = ["--outcome-from", "exit", "--", sys.executable, "-c", AGENT, "1", "0"]
    steered = {"OPENAI_BASE_URL": upstream.base_url, "XDG_RUNTIME_DIR": str(tmp_path)}
    with GatewayProcess(tmp_path, env=steered) as gateway:
        limited = wrapped(tmp_path, upstream, "--gateway", "--sub-agents", "2", *agent)
        assert limited.returncode == 2
        assert "--sub-agents: only for a gateway that is started here" in limited.stderr
        for words, more in ((["--gateway"], {}), ([], {"OPENAI_BASE_URL": gateway.base_url})):
            ended = wrapped(tmp_path, upstream, *words, *agent, **more)
            assert ended.returncode == 0, ended.stderr
            assert f"the gateway that runs at {gateway.url}/dashboard" in ended.stderr
            assert "gateway: 1 run, 0 steps" in ended.stderr
            assert ", outcome success" in ended.stderr
            assert f"page     {gateway.url}/dashboard/runs/c-" in ended.stderr
        refused = wrapped(tmp_path, upstream, "--gateway", "--mode", "on", *agent)
        assert (refused.returncode, "--mode: only for" in refused.stderr) == (2, True)
    assert not list(tmp_path.glob("steering-gateway/*"))


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal of 100 columns: (the user's end, the program's end)."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 100))
    yield ours, theirs
    for end in (ours, theirs):
        os.close(end)


def test_the_terminal_is_the_commands_own(
    upstream: ScriptedUpstream, tmp_path: Path, terminal: tuple[int, int]
) -> None:
    """It is in the foreground, sees the size and its changes, gets Ctrl-C once and a signal sent to
    the wrapper too; when a signal ends it, the status says so."""
    ours, theirs = terminal
    process = subprocess.Popen(
        command("--", sys.executable, "-c", TERMINAL),
        cwd=tmp_path,
        env=environment(tmp_path, upstream),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    shown = _until(ours, "", "ready")
    assert "tty True 100 30" in shown
    assert "group True" in shown
    termios.tcsetwinsize(ours, (30, 90))
    os.write(ours, b"\x03")
    shown = _until(ours, shown, "^C")
    process.send_signal(signal.SIGTERM)
    shown = _until(ours, shown, "page" if "1 run" in shown else "nothing was recorded")
    assert process.wait(WAIT_S) == 128 + signal.SIGKILL
    expected = sorted([signal.SIGINT, signal.SIGTERM, signal.SIGWINCH])
    assert f"signals {[int(number) for number in expected]} 1" in shown
    assert "now 90" in shown


@pytest.mark.parametrize(
    ("begins", "shown_as"),
    [
        ("", "\ngateway: budget two"),
        ("import tty; tty.setcbreak(0)\n", "\x1b]9;gateway: budget two"),
    ],
    ids=["lines", "keys"],
)
def test_the_terminal_shows_what_a_person_is_asked(
    upstream: ScriptedUpstream,
    tmp_path: Path,
    terminal: tuple[int, int],
    begins: str,
    shown_as: str,
) -> None:
    """As a line, or as a notification to a command that reads single keys; what it names, with the
    key that was shown before, lets the command go on."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    ladder = [{"at": 1.0, "do": "ask"}]
    budget = {"name": "two", "scope": "run", "limits": {"calls": 2}, "ladder": ladder}
    about = {"budgets": [budget], "control": {"poll_s": 0.1}}
    (config := tmp_path / "asks.yaml").write_text(json.dumps(about))
    ours, theirs = terminal
    variables = environment(tmp_path, upstream)
    agent = [sys.executable, "-c", begins + AGENT, "3", "0"]
    process = subprocess.Popen(
        command("--config", str(config), "--", *agent),
        cwd=tmp_path,
        env=variables,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    shown = _until(ours, "", "from another terminal\a" if begins else ", or deny")
    asked = re.search(r"budget two: .*: gateway (runs approve \S+), or deny", shown)
    key = re.search(r"its admin key: (\S+)", shown)
    assert asked, shown
    assert key, shown
    assert shown_as in shown
    subprocess.run(
        [sys.executable, "-m", "gateway", *asked[1].split()],
        cwd=tmp_path,
        env={**variables, "GATEWAY_ADMIN_KEY": key[1]},
        check=True,
        timeout=WAIT_S,
    )
    _until(ours, shown, "gpt-4o 3")
    assert process.wait(WAIT_S) == 0


STOPPABLE = """
import os, signal, sys
def stop(number, frame):
    os.write(1, b"screen restored\\n")
    os.kill(os.getpid(), signal.SIGSTOP)
    os.write(1, b"screen drawn\\n")
signal.signal(signal.SIGTSTP, stop)
os.write(1, b"agent up\\n")
for line in sys.stdin:
    print("got", line.strip(), flush=True)
    sys.exit(7)
"""


def test_a_command_is_stopped_and_continued_by_the_shell(
    upstream: ScriptedUpstream, tmp_path: Path, terminal: tuple[int, int]
) -> None:
    """Ctrl-Z stops both once the agent has restored the screen, `fg` continues both."""
    ours, theirs = terminal
    (tmp_path / "agent.py").write_text(STOPPABLE)
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        cwd=tmp_path,
        env={**environment(tmp_path, upstream), "PS1": "$ ", "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    words = shlex.join(command("--", sys.executable, "agent.py"))
    os.write(ours, f"{words}\n".encode())
    _until(ours, "", "agent up")
    os.write(ours, b"\x1a")
    shown = _until(ours, "", "Stopped")
    assert shown.index("screen restored") < shown.index("Stopped")
    os.write(ours, b"fg\n")
    _until(ours, "", "screen drawn")
    os.write(ours, b"hello\n")
    assert "got hello" in _until(ours, "", "nothing was recorded")
    os.write(ours, b"exit $?\n")
    assert shell.wait(WAIT_S) == 7


def _until(ours: int, shown: str, text: str) -> str:
    """What the terminal shows, read until `text` is in it."""
    while text not in shown:
        ready, _, _ = select.select([ours], [], [], WAIT_S)
        assert ready, f"no {text!r} in {shown}"
        shown += os.read(ours, 4096).decode()
    return shown
