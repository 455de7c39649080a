"""`python -m bench`: every arm in one run, in interleaved rounds; prints tables.

Linux only: the CPU of the arms' processes comes from the kernel's clocks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import bodies, report
from bench.arms import ARMS, CHAT, Arm, Running, start, upstream
from bench.client import Connection, post
from bench.load import STREAM_CHUNKS, Case, Slice, correct, run_slice
from bench.peers import Unavailable
from bench.processes import NotReady
from bench.statistics import summarise
from bench.streams import hold

_BODIES = {
    "small": bodies.small(),
    "tools": bodies.tools(),
    "cold": bodies.cold(),
    "session": bodies.session(),
    "large": bodies.large(),
    "stream": bodies.small(stream=True),
}
_CASES = (
    "small@1 tools@1 cold@1 session@1 large@1 stream@1 small@32 tools@32 session@32 stream@32"
    " small@256 session@256 stream@256"
)
_QUICK_CASES = "small@1 tools@1 stream@1 small@32"
# A start this quick is repeated, so that one busy moment of the machine does not tell.
_QUICK_START_S, _STARTS = 3.0, 3
# An arm that needs longer than this for one slice has shown what there is to see.
_SLOW_SLICE_S = 2.0
_WARM_S, _WARM_REQUESTS = 0.6, 150
# So many agents are at work at a time; the next request of each extends its last one.
_AT_WORK = 50


class Bench:
    """One run: arms started one by one, measured in rounds, then ended."""

    def __init__(self, options: argparse.Namespace, home: Path) -> None:
        self._options = options
        self._home = home
        # No conversation of one arm is met again, in no round.
        self._numbers = itertools.count(1)
        self._arms = [a for a in ARMS if a.name in options.arms]
        self._cases = [_case(name) for name in options.cases]
        self._report = report.Report(rounds=options.rounds)
        self._running: list[Running] = []

    async def run(self) -> report.Report:
        """Measure everything that was asked for."""
        began = time.perf_counter()
        if self._cases:
            with upstream(self._home, "--chunks", str(STREAM_CHUNKS)) as port:
                try:
                    await self._measure(port)
                finally:
                    for running in self._running:
                        if running.server:
                            running.server.stop()
        if self._options.streams:
            await self._hold_streams()
        self._report.seconds = time.perf_counter() - began
        return self._report

    async def _measure(self, port: int) -> None:
        for arm in self._arms:
            _say(f"starting {arm.name}")
            try:
                self._running.append(await self._start(arm, port))
            except (Unavailable, NotReady) as exc:
                self._report.skipped[arm.name] = str(exc)
        for running in self._running:
            _say(f"warming {running.arm.name}")
            await self._warm(running)
        await self._rounds()
        found = [report.Process.of(r) for r in self._running]
        self._report.processes = [p for p in found if p is not None]

    async def _start(self, arm: Arm, port: int) -> Running:
        taken = []
        while True:
            running = start(arm, port, self._home)
            taken.append(running.ready_s)
            if running.server is None:
                return running
            if len(taken) >= _STARTS or running.ready_s > _QUICK_START_S:
                break
            running.server.stop()
        running.ready_s = statistics.median(taken)
        await self._first_answer(running)
        return running

    async def _first_answer(self, running: Running) -> None:
        connection = await Connection.open(running.port)
        body = _BODIES["small"].numbered(next(self._numbers))
        answer = await connection.ask(post(CHAT, body, running.headers))
        connection.close()
        assert running.server is not None
        if not correct(answer, stream=False):
            last = answer.raw[-300:].decode("utf-8", "replace")
            running.server.stop()
            raise NotReady(f"its first answer was {answer.status}: {last}")
        running.first_answer_s = time.perf_counter() - running.server.started
        running.rss_idle_mb = running.server.rss_mb()

    async def _warm(self, running: Running) -> None:
        for name in {case.body.name for case in self._cases}:
            case = Case(body=_BODIES[name], concurrency=4)
            numbers = itertools.islice(self._numbers, _WARM_REQUESTS)
            await run_slice(running, case, numbers, limit_s=_WARM_S)

    async def _rounds(self) -> None:
        slices: dict[tuple[str, str], list[Slice]] = {}
        for number in range(self._options.rounds):
            # Another arm begins each round, so that none always follows the same neighbour.
            shift = number % max(1, len(self._running))
            order = self._running[shift:] + self._running[:shift]
            for case in self._cases:
                _say(f"round {number + 1} of {self._options.rounds}: {case.name}")
                for running in order:
                    done = slices.setdefault((running.arm.name, case.name), [])
                    if not done or _worth_repeating(done[-1]):
                        done.append(await self._slice(running, case))
        for case in self._cases:
            for running in self._running:
                name = running.arm.name
                summary = summarise(name, case.name, slices[name, case.name])
                self._report.summaries.append(summary)

    async def _slice(self, running: Running, case: Case) -> Slice:
        body, seconds = case.body, self._options.seconds
        count = max(case.concurrency, self._options.requests)
        if body.before is None or not running.arm.remembers:
            numbers = itertools.islice(self._numbers, count)
            return await run_slice(running, case, numbers, limit_s=seconds)
        done = Slice()
        while len(done.latencies_ms) + done.failures < count and done.seconds < seconds:
            # Unmeasured: so that what is measured are conversations that go on by one step.
            wave = list(itertools.islice(self._numbers, max(_AT_WORK, case.concurrency)))
            await run_slice(running, Case(body=body.before, concurrency=8), wave)
            done.add(await run_slice(running, case, wave, limit_s=seconds - done.seconds))
        return done

    async def _hold_streams(self) -> None:
        for arm in self._arms:
            if arm.name in self._report.skipped:
                continue
            _say(f"{self._options.streams} streams: {arm.name}")
            try:
                held = await hold(arm, self._home, self._options.streams)
            except (Unavailable, NotReady) as exc:
                self._report.skipped[arm.name] = str(exc)
                continue
            self._report.held.append(held)


def _worth_repeating(done: Slice) -> bool:
    return bool(done.latencies_ms) and done.seconds < _SLOW_SLICE_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; 0 when this gateway started and answered every request rightly."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as home:
        found = uvloop.run(Bench(options, Path(home)).run())
    _say("")
    print(report.text(found))
    if options.json:
        options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n")
    if options.markdown:
        print("\n" + report.markdown(found))
    own = {a.name for a in ARMS if a.own}
    failed = own & (found.skipped.keys() | {s.arm for s in found.summaries if s.failures})
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [a.name for a in ARMS]
    parser.add_argument("--arms", nargs="+", choices=names, default=names, metavar="ARM")
    parser.add_argument(
        "--cases",
        nargs="*",
        metavar="BODY@CONCURRENCY",
        help=f"of {', '.join(_BODIES)}; default: {_CASES}",
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--requests", type=int, default=400, help="in a slice, at most")
    parser.add_argument("--seconds", type=float, help="after which a slice begins no more requests")
    parser.add_argument("--streams", type=int, help="held open at once; 0 leaves the case out")
    parser.add_argument(
        "--quick", action="store_true", help="fewer cases and rounds, no held streams"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--markdown", action="store_true", help="print the README's tables, too")
    options = parser.parse_args(arguments)
    quick = options.quick
    if options.cases is None:
        options.cases = (_QUICK_CASES if quick else _CASES).split()
    options.rounds = options.rounds or (2 if quick else 3)
    options.seconds = options.seconds or (0.4 if quick else 0.5)
    if options.streams is None:
        options.streams = 0 if quick else 500
    for name in options.cases:
        try:
            _case(name)
        except (KeyError, ValueError):
            parser.error(
                f"no case {name!r}: write one of {', '.join(_BODIES)}, then @ and a number"
            )
    return options


def _case(name: str) -> Case:
    body, _, concurrency = name.partition("@")
    return Case(body=_BODIES[body], concurrency=int(concurrency or 1))


def _say(what: str) -> None:
    """Progress, on a terminal only: one line that is written over."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
