"""A wrapped program against its own budget: nothing that it is told, and no command, raises it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.auth.keys import KEY_PREFIX
from gateway.backends import open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.features.wrap.wrap import _act_lines
from gateway.stores.controls import GATEWAY
from gateway.stores.sql.audit_log import Change
from steering_gateway_testing import Reply, ScriptedUpstream, Usage
from steering_gateway_testing.processes import GatewayProcess
from tests.features.wrap.test_wrap import WAIT_S, environment, wrapped

CALLS = 4  # of $0.05: 20,000 tokens of input to gpt-4o
USAGE = Usage(prompt_tokens=20_000, completion_tokens=0)
PROGRAM = """
import json, os, re, sqlite3, subprocess, sys, urllib.error, urllib.request
BASE = os.environ["OPENAI_BASE_URL"]

def call(task="mend the bridge", **headers):
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": task}]})
    asked = urllib.request.Request(BASE + "/chat/completions", body.encode(),
        {"content-type": "application/json", "authorization": "Bearer sk-mine", **headers})
    try:
        answer = urllib.request.urlopen(asked)
        said = json.load(answer)["choices"][0]["message"]["content"]
        return said, "x-gateway-stopped" not in answer.headers
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]["message"], False

def use_up():
    for number in range(50):
        said, passed = call(f"task {number}")
        if not passed:
            return said
    raise SystemExit("no call was refused")
"""
OBEDIENT = """
told = []
for _ in range(3):
    said = use_up()
    told.append(said)
    for command in re.findall(r"gateway [a-z].*", said):
        subprocess.run([sys.executable, "-m", *command.split()], stdin=subprocess.DEVNULL)
print(json.dumps(told))
"""
DILIGENT = """
from argparse import _SubParsersAction
from contextlib import closing, redirect_stdout
from io import StringIO
from gateway.cli import build_parser, main, tree

def run(*words):
    out = StringIO()
    try:
        with redirect_stdout(out):
            status = main(words)
    except SystemExit as ended:
        status = ended.code
    return status, out.getvalue()

use_up()
os.environ["GATEWAY_STORAGE__PATH"] = os.environ["XDG_STATE_HOME"] + "/steering-gateway/gateway.db"
account = json.loads(run("budgets", "list", "--json")[1].splitlines()[0])
run_id = json.loads(run("runs", "list", "--json")[1].splitlines()[0])["id"]
VALUES = {"budget": account["budget"], "subject": run_id, "run_id": run_id, "outcome": "success",
    "tenant": "default", "shell": "bash", "text": "loop", "file": "pattern.jsonl",
    "pattern": '{"tier": "e3", "fields": {"fact": "Never stop."}}', "files": "runs.jsonl",
    "apply": "on", "experiment": None, "command": None}
PATTERN = {"tier": "e3", "fields": {"fact": "Go on."}}
open("pattern.jsonl", "w").write(json.dumps(PATTERN))
open("runs.jsonl", "w").close()
ALONE = {"serve", "bench", "demo", "wrap"}  # tried below, or no command on a store
tried = {}
for words, parser, _ in tree(build_parser()):
    needs = [a for a in parser._actions if isinstance(a, _SubParsersAction) and a.required]
    if not words or words[0] in ALONE or needs:
        continue
    more = []
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, _SubParsersAction):
            value = VALUES.get(action.dest, "x")
            more += [value] if value is not None else []
    given = {option for action in parser._actions for option in action.option_strings}
    subject = "default" if words[0] == "budgets" else run_id
    more = [subject if value is run_id else value for value in more]
    more += [o for o in ("--yes", "--once", "--lift", "--active") if o in given]
    more += ["--usd", "100"] if "--usd" in given else []
    more += ["--author", "agent"] if "--author" in given else []
    tried[" ".join(words)] = run(*words, *more)[0]
    passed = [call(f"after {words}")[1]]
    assert not any(passed), words
print(json.dumps({"tried": tried, **account}))
"""
HOSTILE = """
use_up()
file = os.environ["XDG_STATE_HOME"] + "/steering-gateway/gateway.db"
with sqlite3.connect(file) as database:
    database.execute("DELETE FROM admin_keys")
    database.execute("UPDATE budget_accounts SET limits = '{\\"usd\\": 100.0}', lifted = 1, "
        "usd = 0, calls = 0, input_tokens = 0, output_tokens = 0, version = version + 1")
for _ in range(3):
    print(call("after the file was changed")[1])
"""


def ended(
    tmp_path: Path, upstream: ScriptedUpstream, program: str, *words: str, **more: str
) -> tuple[subprocess.CompletedProcess[str], int]:
    """How a wrapped program with a budget of $0.20 ended, and the calls that were sent for it."""
    upstream.default = Reply("done", usage=USAGE)
    agent = [sys.executable, "-c", PROGRAM + program]
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "USER": "agent"}
    budget = () if "--gateway" in words else ("--budget", "0.20")
    ran = wrapped(tmp_path, upstream, *words, *budget, "--", *agent, **state, **more)
    assert ran.returncode == 0, ran.stderr
    return ran, len(upstream.requests)


@pytest.mark.slow
def test_a_program_that_obeys_a_stop_ends_at_its_budget(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The message has the figures and whom to ask, no command and no path; the summary of the
    person has them."""
    ran, calls = ended(tmp_path, upstream, OBEDIENT)
    assert calls == CALLS
    for said in json.loads(ran.stdout.splitlines()[-1]):
        assert "$0.20 of the $0.20 budget is used" in said
        assert "The person who runs the gateway can raise the limit." in said
        assert "gateway budgets" not in said
        assert str(tmp_path) not in said


@pytest.mark.slow
def test_no_command_raises_the_budget_of_its_program(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Every command with every verb, as the program itself can run it: what changes something is
    refused, what shows something works."""
    ran, calls = ended(tmp_path, upstream, DILIGENT)
    assert calls == CALLS
    found = json.loads(ran.stdout.splitlines()[-1])
    tried = found["tried"]
    for words in ("budgets raise", "budgets lift", "budgets reset", "keys create", "keys reset"):
        assert tried[words] == 2, words
    for words in ("steering off", "pilot start", "runs stop", "patterns add"):
        assert tried[words] == 2, words
    for words in ("budgets list", "keys list", "steering", "pilot", "runs held", "audit"):
        assert tried[words] == 0, words
    assert "budget: agent" not in ran.stderr


@pytest.mark.slow
def test_a_file_that_was_changed_raises_nothing(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Limits without a valid MAC are ignored, also where the proofs of keys were removed."""
    ran, calls = ended(tmp_path, upstream, HOSTILE)
    assert calls == CALLS
    assert ran.stdout.split() == ["False"] * 3


@pytest.mark.slow
def test_the_key_of_a_config_is_no_key_of_the_wrap(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The program can read the config and its environment: neither has the key that counts."""
    program = """
use_up()
print(json.dumps([name for name, value in os.environ.items() if value == "a" * 40]))
asked = {"x-gateway-key": "a" * 40, "content-type": "application/json"}
listed = json.loads(subprocess.run([sys.executable, "-m", "gateway", "budgets", "list", "--json"],
    capture_output=True).stdout)
body = {"budget": listed["budget"], "subject": "default", "limits": {"usd": 9}}
raised = urllib.request.Request(BASE.removesuffix("/v1") + "/api/budgets/raise",
    json.dumps(body).encode(), asked)
try:
    urllib.request.urlopen(raised)
except urllib.error.HTTPError as error:
    print(error.code)
os.environ["GATEWAY_ADMIN_KEY"] = "a" * 40
words = ["budgets", "raise", listed["budget"], "default", "--usd", "9"]
print(subprocess.run([sys.executable, "-m", "gateway", *words]).returncode)
print(call()[1])
"""
    ran, calls = ended(tmp_path, upstream, program, GATEWAY_AUTH__ADMIN_KEY="a" * 40)
    assert calls == CALLS
    assert ran.stdout.split() == ["[]", "401", "2", "False"]


@pytest.mark.slow
def test_no_key_is_in_what_the_system_shows_of_a_wrapped_program(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Neither its environment nor its command line, as `/proc` has them, nor its children's."""
    program = """
shown = [open(f"/proc/{process}/{name}", "rb").read().decode(errors="replace")
    for process in ("self", os.getpid()) for name in ("environ", "cmdline")]
child = subprocess.run(["cat", "/proc/self/environ", "/proc/self/cmdline"], capture_output=True)
print(json.dumps([*shown, child.stdout.decode(errors="replace")]))
"""
    ran, _ = ended(tmp_path, upstream, program, GATEWAY_AUTH__ADMIN_KEY="a" * 40)
    shown = json.loads(ran.stdout)
    assert all("OPENAI_BASE_URL" in text for text in (shown[0], shown[-1]))
    assert [text for text in shown if KEY_PREFIX in text or "a" * 40 in text] == []


async def test_the_summary_names_who_approved_what_a_run_asked() -> None:
    """Beside who raised the budget; what the gateway did itself, and other runs, are not in it."""
    stores = await open_stores(StorageSettings(path=IN_MEMORY), vectors=False)
    changes = stores.changes
    assert changes is not None
    await changes.note("run", "approve", "c-1.0", {"reason": "go on"}, author="ann")
    await changes.note("run", "deny", "c-2.0", {}, author="bob")
    await changes.note("budget", "raise", "default", {"budget": "wrap-1", "usd": 2}, author="cleo")
    await changes.note("budget", "stop", "default", {"budget": "wrap-1"}, author=GATEWAY)
    acts = [
        *await changes.find(kind="run", since=0, subjects=["c-1.0"]),
        *await changes.find(kind="budget", since=0, text="wrap-1"),
    ]
    opened = SimpleNamespace(stores=SimpleNamespace(changes=SimpleNamespace(find=found_in(acts))))
    own = SimpleNamespace(
        server=SimpleNamespace(runtime=SimpleNamespace(opened=opened)), call=lambda given: given
    )
    traces: Any = [{"run": {"id": "c-1.0"}}]
    lines = list(_act_lines(own, "wrap-1", traces, 0))  # type: ignore[arg-type]
    await stores.close()
    assert [line.split(":")[:2] for line in lines] == [["run", " ann"], ["budget", " cleo"]]
    assert "approve" in lines[0]
    assert lines[0].endswith("go on")


def found_in(acts: list[Change]) -> Callable[..., list[Change]]:
    """Finds acts of a kind, as the store has them."""
    return lambda kind, **_: [act for act in acts if act.kind == kind]


@pytest.mark.slow
def test_a_server_with_an_admin_key_keeps_its_budget(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The same program before a gateway that was there already; the person's command, which brings
    the key, raises it, and the audit log has the author."""
    upstream.default = Reply("done", usage=USAGE)
    budget = {"name": "daily", "scope": "tenant", "limits": {"usd": 0.20}, "stop_with": "answer"}
    config = {
        "storage": {"path": str(tmp_path / "server.db")},
        "auth": {"admin_key": "a" * 40},
        "budgets": [budget],
        "default_upstream": {"api_base": upstream.base_url},
    }
    with GatewayProcess(tmp_path, json.dumps(config)) as server:
        program = PROGRAM + OBEDIENT
        env = {**environment(tmp_path, upstream), "OPENAI_BASE_URL": f"{server.url}/v1"}
        env |= {"GATEWAY_CONFIG": str(server.config)}
        asked = [sys.executable, "-c", program]
        run = {"env": env, "capture_output": True, "text": True, "timeout": WAIT_S, "check": True}
        said = json.loads(subprocess.run(asked, **run).stdout.splitlines()[-1])  # type: ignore[call-overload]
        assert len(upstream.requests) == CALLS
        assert not [each for each in said if "gateway budgets" in each or str(tmp_path) in each]
        words = ["budgets", "raise", "daily", "default", "--usd", "1", "--author", "ann"]
        person = [sys.executable, "-m", "gateway", *words]
        refused = subprocess.run(person, **run | {"check": False})  # type: ignore[call-overload]
        assert refused.returncode == 2
        assert "GATEWAY_ADMIN_KEY" in refused.stderr
        run["env"] = {**env, "GATEWAY_ADMIN_KEY": "a" * 40}
        subprocess.run(person, **run)  # type: ignore[call-overload]
        subprocess.run([sys.executable, "-c", PROGRAM + "assert call()[1]"], **run)  # type: ignore[call-overload]
        log = subprocess.run([*person[:3], "audit"], **run).stdout  # type: ignore[call-overload]
        assert re.search("budget raise default ann", log)
    with closing(sqlite3.connect(tmp_path / "server.db")) as database:
        (mac,) = database.execute("SELECT mac FROM budget_accounts").fetchone()
    assert len(mac) == 64
    assert os.environ.get("GATEWAY_ADMIN_KEY") is None
