"""`python -m bench.history`: how long `gateway history` takes for many sessions, and its memory.

    python -m bench.history --sessions 1000 --megabytes 1

The sessions are made: steps of Claude Code that read files, with results of 8 kB. Every arm is a
process of its own over the same files: the command with one process and with one per core, and a
program that only parses each line, to which the ratios are.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from bench.report import aligned, machine

RESULT_BYTES = 8_000
_WORDS = ("alpha", "beta", "gamma", "delta", "return", "import", "value", "index", "result")
_PARSE = """
import pathlib, sys, orjson
for path in pathlib.Path(sys.argv[1]).rglob("*.jsonl"):
    with path.open("rb") as lines:
        for line in lines:
            orjson.loads(line)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the sessions, run the arms in turn, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=1.0, help="of each session")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gateway-history-") as folder:
        for number in range(options.sessions):
            path = Path(folder) / f"p{number % 20}" / f"{number:08d}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(session(number, int(options.megabytes * 1e6)))
        gateway = [sys.executable, "-m", "gateway", "history", folder]
        rows = {
            "parse lines only": measure([sys.executable, "-c", _PARSE, folder]),
            "history --jobs 1": measure([*gateway, "--jobs", "1"]),
            "history": measure(gateway),
        }
    first = next(iter(rows.values()))
    print(machine())
    table = [["", "s", "CPU s", "ratio of CPU", "MB at most"]]
    for name, (elapsed, cpu, memory) in rows.items():
        table.append(
            [name, f"{elapsed:.1f}", f"{cpu:.1f}", f"{cpu / first[1]:.1f}", f"{memory:.0f}"]
        )
    print(aligned(table))
    return 0


def measure(command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds, seconds of CPU with all children, and MB of the largest process, of a command."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    elapsed = time.perf_counter() - started
    return elapsed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def session(number: int, size: int) -> bytes:
    """The lines of one session of about `size` bytes."""
    lines = [_line(number, 0, "user", {"role": "user", "content": f"Task {number}: tidy up."})]
    written = step = 0
    while written < size:
        step += 1
        words = [_WORDS[(step * 7 + at * number + at) % len(_WORDS)] for at in range(40)]
        text = "\n".join(f"{at} {' '.join(words)} {step}" for at in range(RESULT_BYTES // 280))
        use = {"type": "tool_use", "id": f"c{step}", "name": "Read"}
        use["input"] = {"file_path": f"/p/{number}/file{step}.py"}  # type: ignore[assignment]
        answer = {"id": f"m{number}-{step}", "role": "assistant", "model": "claude-sonnet-4-5"}
        usage = {"input_tokens": 10, "cache_read_input_tokens": 1000 * step, "output_tokens": 80}
        lines.append(_line(number, step, "assistant", {**answer, "content": [use], "usage": usage}))
        result = {"type": "tool_result", "tool_use_id": f"c{step}", "content": text}
        lines.append(_line(number, step, "user", {"role": "user", "content": [result]}))
        written += len(lines[-1]) + len(lines[-2])
    return b"\n".join(lines) + b"\n"


def _line(number: int, step: int, kind: str, message: Mapping[str, object]) -> bytes:
    at = f"2026-02-{number % 28 + 1:02d}T{step // 3600 % 24:02d}:{step // 60 % 60:02d}:00Z"
    entry = {"type": kind, "sessionId": f"s{number}", "uuid": f"{number}-{step}-{kind}"}
    entry |= {"parentUuid": f"{number}-{step - 1}-user", "version": "2.1.37"}
    return orjson.dumps({**entry, "cwd": "/p", "timestamp": at, "message": message})


if __name__ == "__main__":
    raise SystemExit(main())
