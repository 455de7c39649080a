"""The scripted upstream as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """The base URL of a process started with `arguments`; it must end well on SIGTERM."""
    command = [sys.executable, "-m", "steering_gateway_testing", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
        assert process.wait(120) == 0


def test_a_stream_has_the_asked_number_of_chunks() -> None:
    """`--chunks` cuts the text into so many deltas, `--content-bytes` sets its length."""
    with running("--chunks", "100", "--content-bytes", "1234") as url:
        whole = httpx.post(f"{url}/chat/completions", json=HELLO).json()
        stream = httpx.post(f"{url}/chat/completions", json={**HELLO, "stream": True}).text
    assert len(whole["choices"][0]["message"]["content"]) == 1234
    assert stream.count('"delta":{"content"') == 100


@pytest.mark.parametrize(("times", "statuses"), [((), [503, 503]), (("--times", "1"), [503, 200])])
def test_a_fault_strikes_for_ever_or_so_many_times(
    times: tuple[str, ...], statuses: list[int]
) -> None:
    """`--fault` is the answer to everything unless `--times` bounds it."""
    with running("--fault", "unavailable", *times) as url:
        answers = [httpx.post(f"{url}/chat/completions", json=HELLO) for _ in statuses]
    assert [answer.status_code for answer in answers] == statuses


def test_an_unknown_fault_is_refused() -> None:
    """A wrong name ends the process with the list of those that exist."""
    command = [sys.executable, "-m", "steering_gateway_testing", "--fault", "nonsense"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "drop-mid-body" in ended.stderr
