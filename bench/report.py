"""Figures as text tables, for a terminal or for a README."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.arms import ARMS, OURS, Running
from bench.statistics import Summary
from bench.streams import CHUNK_DELAY_MS, CHUNKS, Held

Row = list[str]

_TITLES = {
    "small": "small",
    "tools": "61 messages, known before",
    "cold": "61 messages, cold",
    "session": "session, call 21 of 40, known before",
    "large": "400 kB, known before",
    "stream": "100-chunk stream",
}


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything one run found."""

    rounds: int
    summaries: list[Summary] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def of(self, arm: str, case: str) -> Summary | None:
        """The figures of one arm in one case."""
        return next((s for s in self.summaries if (s.arm, s.case) == (arm, case)), None)

    def as_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "skipped": self.skipped,
            "processes": [dataclasses.asdict(p) for p in self.processes],
            "cases": [dataclasses.asdict(s) for s in self.summaries],
            "streams": [dataclasses.asdict(h) for h in self.held],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What an arm's process took beside the requests."""

    arm: str
    ready_s: float
    """From the start to the first 200 of its readiness route; median of the starts."""

    first_answer_s: float
    """From the start to the end of the first completion."""

    rss_idle_mb: float
    rss_loaded_mb: float

    @classmethod
    def of(cls, running: Running) -> Process | None:
        """Its figures now, at the end of the load; None for the direct arm."""
        if running.server is None:
            return None
        return cls(
            arm=running.arm.name,
            ready_s=running.ready_s,
            first_answer_s=running.first_answer_s,
            rss_idle_mb=running.rss_idle_mb,
            rss_loaded_mb=running.server.rss_mb(),
        )


def text(report: Report) -> str:
    """The whole report for a terminal."""
    parts = [machine()]
    for case in dict.fromkeys(s.case for s in report.summaries):
        parts.append(f"{case}\n{aligned(_case_rows(report, case))}")
    if report.processes:
        parts.append(f"processes\n{aligned(_process_rows(report))}")
    if report.held:
        parts.append(f"{_held_title(report.held)}\n{aligned(_held_rows(report.held))}")
    parts += [f"skipped {name}: {reason}" for name, reason in report.skipped.items()]
    parts.append(f"median of {report.rounds} interleaved rounds; {report.seconds:.0f} s in all")
    return "\n\n".join(parts)


def markdown(report: Report) -> str:
    """The tables for the README, with the machine and the date."""
    cases = [c for c in dict.fromkeys(s.case for s in report.summaries) if c.endswith("@1")]
    parts = [
        f"{machine()}; {time.strftime('%Y-%m-%d')}; median of {report.rounds} interleaved rounds.",
        _piped(_overview_rows(report, cases)),
    ]
    if report.held:
        parts += [_held_title(report.held) + ":", _piped(_held_rows(report.held))]
    parts += [f"Not measured: {name} ({reason})." for name, reason in report.skipped.items()]
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """The machine in one line: processor, cores, memory, system, Python."""
    info = _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    python = f"Python {platform.python_version()}"
    return f"{info}, {os.cpu_count()} cores, {memory:.0f} GB, {system}, {python}"


def _case_rows(report: Report, case: str) -> list[Row]:
    ours, direct = report.of(OURS, case), report.of("direct", case)
    head = ["", "CPU ms", "(spread)", "x ours", "p50 ms", "(spread)", "added", "x ours"]
    rows = [[*head, "p99 ms", "first ms", "req/s", "n", "failed"]]
    for s in (s for s in report.summaries if s.case == case):
        added = s.p50_ms.median - direct.p50_ms.median if direct else math.nan
        our_added = ours.p50_ms.median - direct.p50_ms.median if ours and direct else math.nan
        has_process = s.arm != "direct"
        rows.append(
            [
                s.arm,
                ms(s.cpu_ms.median) if has_process else "-",
                f"{ms(s.cpu_ms.low)}-{ms(s.cpu_ms.high)}" if has_process else "",
                _ratio(s.cpu_ms.median, ours.cpu_ms.median) if ours and has_process else "",
                ms(s.p50_ms.median),
                f"{ms(s.p50_ms.low)}-{ms(s.p50_ms.high)}",
                ms(added) if has_process else "",
                _ratio(added, our_added) if has_process else "",
                ms(s.p99_ms.median),
                ms(s.first_byte_p50_ms.median),
                f"{s.per_s.median:.0f}",
                str(s.requests),
                str(s.failures),
            ]
        )
    return rows


def _process_rows(report: Report) -> list[Row]:
    rows = [["", "ready s", "first answer s", "RSS idle MB", "RSS loaded MB"]]
    for p in report.processes:
        row = [p.arm, f"{p.ready_s:.2f}", f"{p.first_answer_s:.2f}"]
        rows.append([*row, f"{p.rss_idle_mb:.0f}", f"{p.rss_loaded_mb:.0f}"])
    return rows


def _held_title(held: Sequence[Held]) -> str:
    length = CHUNKS * CHUNK_DELAY_MS / 1000
    return f"{held[0].streams} streams open at once, each {CHUNKS} chunks in {length:g} s"


def _held_rows(held: Sequence[Held]) -> list[Row]:
    head = ["", "whole", "stall p50 ms", "p99", "max", "(idle max)", "slowest s"]
    rows = [[*head, "CPU ms a stream", "RSS MB"]]
    for h in held:
        stalls = (h.stall_p50_ms, h.stall_p99_ms, h.stall_max_ms, h.idle_max_ms)
        row = [h.arm, f"{h.whole} of {h.streams}", *map(ms, stalls), f"{h.longest_s:.2f}"]
        own = [ms(h.cpu_ms_per_stream), f"{h.rss_mb:.0f}"] if h.rss_mb else ["-", "-"]
        rows.append([*row, *own])
    return rows


def _overview_rows(report: Report, cases: Sequence[str]) -> list[Row]:
    titles = [_TITLES.get(c.partition("@")[0], c) for c in cases]
    head = ["CPU ms a request", *titles, "added p50 ms, in this order", "memory MB", "ready s"]
    rows = [head]
    whats = {a.name: a.what for a in ARMS}
    for process in report.processes:
        cpu = [_cpu_cell(report, process.arm, case) for case in cases]
        added = " / ".join(_added_cell(report, process.arm, case) for case in cases)
        own = [f"{process.rss_loaded_mb:.0f}", f"{process.ready_s:.1f}"]
        rows.append([whats[process.arm], *cpu, added, *own])
    return rows


def _cpu_cell(report: Report, arm: str, case: str) -> str:
    ours, theirs = report.of(OURS, case), report.of(arm, case)
    if theirs is None:
        return "-"
    cell = ms(theirs.cpu_ms.median)
    if ours and arm != OURS:
        cell += f" ({_ratio(theirs.cpu_ms.median, ours.cpu_ms.median)})"
    return cell


def _added_cell(report: Report, arm: str, case: str) -> str:
    direct, theirs = report.of("direct", case), report.of(arm, case)
    return ms(theirs.p50_ms.median - direct.p50_ms.median) if theirs and direct else "-"


def ms(value: float) -> str:
    """Milliseconds (or megabytes) with as many digits as are worth reading."""
    if math.isnan(value):
        return "-"
    return (
        f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )


def _ratio(value: float, ours: float) -> str:
    usable = not math.isnan(value) and not math.isnan(ours) and ours > 0
    return f"{value / ours:.1f}x" if usable else ""


def aligned(rows: Sequence[Row]) -> str:
    """Rows as columns, the first one to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _piped(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| --- |" + " ---: |" * (len(rows[0]) - 1))
    return "\n".join(lines)


def _first(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((li.partition(":")[2].strip() for li in lines if li.startswith(key)), None)
