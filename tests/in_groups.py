"""A plugin of pytest: runs the rooms of the tests in groups, each a process of its own.

One process that runs every room ends at 700 MB instead of 400, and workers of pytest-xdist each
collect the whole suite. What the groups report is one session's: its summary ends the output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import pytest

from tests.memory import peak_mb

# Tests that use Anthropic's client: with it and LiteLLM one process of all of `dialects` takes
# 500 MB, and one of `upstream` and `commands` 490; with Python 3.14 they take 560 and 535.
_OTHER_CLIENT = (
    *[f"dialects/test_{name}.py" for name in ("all_faults", "anthropic", "clouds", "translation")],
    "upstream/test_dry_seats.py",
)
_NAMED = (  # what is not named makes two more groups, of features and of the rest
    ("live",),
    ("relay",),
    ("api", "holds", "features/budgets", "clients"),
    ("dialects",),
    _OTHER_CLIENT,
    ("seats", "wire", "steering", "text", "conversations"),  # large messages while it is small
    ("stores", "replicas", "features/postgres", "features/litellm"),
    ("commands", "config", "upstream", "library", "embedding"),
)
_OPTION = "--in-groups"
_FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
_SHOWN = 4000  # characters of the output of a process that ended without reports of what failed


class _Sent(NamedTuple):
    """Something that was heard of a group."""

    group: str  # its rooms, as a text
    kind: str  # collected, report, peak, or ended
    value: Any  # by kind: number of tests, report as JSON, MB, or status with output


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("groups")
    options.addoption(_OPTION, type=int, metavar="N", help="run all rooms, N groups at a time")
    options.addoption("--reports-to", type=int, metavar="FD", help="of a group: its reports")


def pytest_configure(config: pytest.Config) -> None:
    """Make this process that of a group, or the one that starts them."""
    if config.option.in_groups:
        config.pluginmanager.register(_Groups(config), "groups of rooms")
    elif config.option.reports_to is not None:
        config.pluginmanager.register(_Reports(config), "reports of a group")


class _Reports:
    """Sends what happens in the process of a group to the one that started it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pipe = os.fdopen(config.option.reports_to, "w", encoding="utf-8")

    def _send(self, kind: str, value: Any) -> None:
        self._pipe.write(json.dumps([kind, value], default=str) + "\n")
        self._pipe.flush()

    def _report(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        hook = self._config.hook
        value = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("report", value)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._send("collected", len(session.items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._report(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._report(report)

    def pytest_sessionfinish(self) -> None:
        self._send("peak", peak_mb())


class _Groups:
    """Starts the groups, and reports what they send as if the tests had run here."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests = config.rootpath / "tests"
        self._sent: SimpleQueue[_Sent] = SimpleQueue()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._failed = set[str]()  # groups that reported a failure
        self._peaks: dict[str, int] = {}
        self._collected = 0
        # Of the last session like this one: the percents do not jump with each group that starts.
        self._counted = f"groups/collected {config.option.markexpr}"
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._expected = self._cache.get(self._counted, 0) if self._cache else 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing here."""
        session.items = []
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        waiting = _groups(self._tests)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._config.option.in_groups:
                    self._start(waiting.pop(0))
                self._take(self._sent.get(), session)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
        finally:
            for process in self._running.values():
                process.terminate()
        session.testscollected = self._collected
        if self._cache:
            self._cache.set(self._counted, self._collected)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how much memory the largest process took."""
        if self._peaks:
            group = max(self._peaks, key=self._peaks.__getitem__)
            terminalreporter.write_line(f"the most memory, {self._peaks[group]} MB: {group}")

    def _start(self, rooms: tuple[str, ...]) -> None:
        group = f"{rooms[0]} and {len(rooms) - 1} more"
        read, write = os.pipe()
        given = [str(each) for each in self._config.invocation_params.args]
        own = [each for each in given if not each.startswith(_OPTION)]
        own += [f"--ignore={self._tests / each}" for each in _OTHER_CLIENT if each not in rooms]
        paths = [str(self._tests / room) for room in rooms]
        printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the group has ended
        self._running[group] = process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *own, "--reports-to", str(write), *paths],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
        )
        os.close(write)
        reading = threading.Thread(
            target=self._listen, args=(group, process, read, printed), daemon=True
        )
        reading.start()

    def _listen(
        self, group: str, process: subprocess.Popen[bytes], read: int, printed: IO[bytes]
    ) -> None:
        """Put what a group sends into the queue, until it has ended."""
        with os.fdopen(read, encoding="utf-8") as lines:
            for line in lines:
                self._sent.put(_Sent(group, *json.loads(line)))
        status = process.wait()
        printed.seek(0)
        text = printed.read().decode("utf-8", "replace")[-_SHOWN:]
        printed.close()
        self._sent.put(_Sent(group, "ended", (status, text)))

    def _take(self, sent: _Sent, session: pytest.Session) -> None:
        if sent.kind == "collected":
            self._collected += sent.value
            session.testscollected = max(self._expected, self._collected)
        elif sent.kind == "peak":
            self._peaks[sent.group] = sent.value
        elif sent.kind == "report":
            self._report(sent.group, sent.value)
        else:
            del self._running[sent.group]
            self._ended(sent.group, *sent.value)

    def _report(self, group: str, value: dict[str, Any]) -> None:
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=value)
        if report.failed:
            self._failed.add(group)
        if isinstance(report, pytest.CollectReport):
            hook.pytest_collectreport(report=report)
        else:
            hook.pytest_runtest_logreport(report=report)

    def _ended(self, group: str, status: int, printed: str) -> None:
        """Report a process that failed without saying which test did, as one that was killed."""
        # The peak is sent when a session is at its end.
        if group in self._peaks and (group in self._failed or status in _FINE):
            return
        text = f"the tests of {group} ended with status {status}:\n{printed}"
        report = pytest.CollectReport(group, "failed", text, [])
        self._config.hook.pytest_collectreport(report=report)


def _groups(tests: Path) -> list[tuple[str, ...]]:
    """The rooms of each group, as paths in `tests`; those that take longest come first."""
    named = {room for rooms in _NAMED for room in rooms}
    found = [path for folder in (tests, tests / "features") for path in folder.glob("*")]
    rooms = {str(path.relative_to(tests)) for path in found if _has_tests(path)}
    others = sorted(rooms - named - {"features"})
    features = tuple([room for room in others if room.startswith("features/")])
    spine = tuple([room for room in others if not room.startswith("features/")])
    live, relay, *rest = [
        tuple([room for room in each if _has_tests(tests / room)]) for each in _NAMED
    ]
    return [each for each in (live, relay, features, spine, *rest) if each]


def _has_tests(path: Path) -> bool:
    if path.is_dir():
        return any(path.rglob("test_*.py"))
    return path.is_file() and path.match("test_*.py")
