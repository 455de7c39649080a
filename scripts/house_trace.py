"""Count how often one chat request passes from one module of the gateway to another.

    PYTHONPATH=CHECKOUT python scripts/house_trace.py RESULT.json

`house.py` runs this as a process of its own, so that the package of any checkout can be traced. It
starts `python -m gateway serve` inside the process with a new database, the default settings (but a
deadline for steering that a busy machine meets as well, and rare periodic looks at the store), and
the scripted upstream of the test kit as the provider. A small agent then plays runs with tools,
without streaming: each request carries the history so far. The third request of each run is
traced; the two before it are the warm-up.

What is counted: call events of `sys.setprofile` in modules of the package, from the moment the
client sends the request until the gateway is quiet again, so that recording the step counts as
well. A call event is a function that is entered or a coroutine or generator that continues; returns
are not counted. The module is that of the function's globals, so a generated `__init__` counts for
the module of its class. A move is two successive call events of one thread in different modules; a
change of threads is no move. A bounce is a move back to the module of the move before. The result
is the traced run with the fewest moves: work in the background only adds to them.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "gateway"
OLD_PROVIDER = "gateway.testing"
"""The test kit of a checkout in which it is part of the package; it is left out."""
RUNS = 5
WARM_UP = 2
PERIODIC = (
    ("auth", "poll_s"),
    ("control", "poll_s"),
    ("storage", "probe_interval_s"),
    ("learning", "interval_s"),
    ("alerts", "check_interval_s"),
)
"""Settings, by section and name: how often the gateway looks for something on its own."""

START_S, LONGEST_S, QUIET_S, POLL_S = 300.0, 60.0, 0.5, 0.05
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in a shell.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


class MoveCounter:
    """A profile function for all threads; it counts while `on` is true."""

    def __init__(self) -> None:
        self.on = False
        self._last: dict[int, str] = {}
        self._moves: dict[int, int] = {}
        self._came_from: dict[int, str] = {}
        self._bounces: dict[int, int] = {}
        self._visited: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if not self.on or event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if not _is_counted(module):
            return
        thread = threading.get_ident()
        before = self._last.get(thread, module)
        self._last[thread] = module
        self._visited.add(module)
        if module == before:
            return
        self._moves[thread] = self._moves.get(thread, 0) + 1
        returns = self._came_from.get(thread) == module
        self._bounces[thread] = self._bounces.get(thread, 0) + returns
        self._came_from[thread] = before

    def reset(self) -> None:
        """Forget what was counted; call it while `on` is false."""
        self._last = {}
        self._moves = {}
        self._came_from = {}
        self._bounces = {}
        self._visited = set()

    @property
    def result(self) -> tuple[int, int, list[str]]:
        """Moves so far, bounces among them, and the modules visited."""
        moves = sum(self._moves.copy().values())
        return moves, sum(self._bounces.copy().values()), sorted(self._visited.copy())


class Agent:
    """An agent with one tool that plays runs over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._messages: list[dict[str, Any]] = []

    def begin(self, number: int) -> None:
        """A new task, with a history of its own."""
        task = f"Make test number {number} of the parser pass, then say what was wrong."
        self._messages = [
            {"role": "system", "content": "You work on a repository with the tool bash."},
            {"role": "user", "content": task},
        ]

    def step(self) -> None:
        """One request with the whole history, and the tool results that follow.

        Raises: RuntimeError when the gateway does not answer with tool calls.
        """
        body = {"model": "scripted-model", "messages": self._messages, "tools": [TOOL]}
        headers = {"content-type": "application/json", "authorization": "Bearer any"}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {content.decode(errors='replace')}")
        message = json.loads(content)["choices"][0]["message"]
        calls = message.get("tool_calls")
        if not calls:
            raise RuntimeError(f"an answer without tool calls: {message}")
        self._messages.append(message)
        for call in calls:
            result = f"1 failed, 3 passed: test_{len(self._messages)}: expected 3 tokens, found 2"
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def traced_runs(port: int, counter: MoveCounter) -> list[tuple[int, int, list[str]]]:
    """Moves, bounces and modules of the request after the warm-up, per run."""
    results = []
    agent = Agent(port)
    for number in range(RUNS):
        agent.begin(number)
        for _ in range(WARM_UP):
            agent.step()
        time.sleep(QUIET_S)  # what the warm-up has left to record
        counter.reset()
        counter.on = True
        agent.step()
        _wait_until_quiet(counter)
        counter.on = False
        results.append(counter.result)
    return results


def measure(port: int, counter: MoveCounter, target: Path) -> None:
    """Trace the running gateway, write the result, and stop the gateway."""
    try:
        _wait_until_ready(port)
        results = sorted(traced_runs(port, counter))
        moves, bounces, visited = results[0]
        found = {"moves": moves, "bounces": bounces, "modules": visited}
        target.write_text(json.dumps(found | {"runs": [each[0] for each in results]}))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main(target: Path) -> None:
    """Serve in the main thread, which SIGTERM needs, and measure from another."""
    try:
        kit = importlib.import_module(OLD_PROVIDER)
    except ModuleNotFoundError:
        kit = importlib.import_module("steering_gateway_testing")

    def reply(request: Any) -> Any:
        count = len(request.json["messages"])
        command = {"command": f"pytest -q tests/test_{count}.py"}
        call = kit.ToolCall("bash", command, id=f"call_{count}")
        return kit.Reply("I run the test again.", tool_calls=(call,))

    with kit.ScriptedUpstream(reply) as upstream, tempfile.TemporaryDirectory() as directory:
        counter, port = MoveCounter(), _free_port()
        for name in [name for name in os.environ if name.startswith("GATEWAY_")]:
            del os.environ[name]
        os.environ["GATEWAY_STORAGE__PATH"] = str(Path(directory, "gateway.db"))
        os.environ["GATEWAY_STEERING__DEADLINE_MS"] = "10000"
        os.environ["GATEWAY_DEFAULT_UPSTREAM__API_BASE"] = upstream.base_url
        os.environ |= _rare_looks()
        client = threading.Thread(target=measure, args=(port, counter, target), daemon=True)
        client.start()
        threading.setprofile(counter)
        sys.setprofile(counter)
        sys.argv = ["gateway", "serve", "--port", str(port)]
        with contextlib.suppress(SystemExit):
            runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)
        sys.setprofile(None)
    if not target.exists():
        sys.exit("the gateway ended before the request was traced")


def _rare_looks() -> dict[str, str]:
    """The periodic looks that this checkout knows, as variables that let them wait for a minute:
    they are no part of a request, and a gateway that looks twice a second is never quiet."""
    from gateway.config import Settings

    settings = Settings()
    return {
        f"GATEWAY_{section}__{name}".upper(): "60"
        for section, name in PERIODIC
        if hasattr(getattr(settings, section, None), name)
    }


def _is_counted(module: str) -> bool:
    own = module.startswith(f"{PACKAGE}.")
    return own and not f"{module}.".startswith(f"{OLD_PROVIDER}.")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        time.sleep(POLL_S)
    raise RuntimeError("the gateway did not start")


def _wait_until_quiet(counter: MoveCounter) -> None:
    before, since = counter.result, time.monotonic()
    ends_at = since + LONGEST_S
    while time.monotonic() - since < QUIET_S:
        time.sleep(POLL_S)
        if counter.result != before:
            before, since = counter.result, time.monotonic()
        if since > ends_at:
            raise RuntimeError("the gateway is never quiet: name what it does in PERIODIC")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
