"""`python -m bench.dashboard [RUNS]`: how fast the pages are over 10,000 runs with 200,000 steps,
and what people who watch them cost the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.client import LOOPBACK
from bench.processes import Server, clean_env, free_port
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.many_runs import write_runs

_STEPS = 20
_TIMES = 5
_CALLS = 400
_WATCHERS = 10
_REFRESH_S = 1.5
_START_S = 120.0

PAGES = (
    "/dashboard",
    "/dashboard/time",
    "/dashboard/time?bucket=hour&by=model",
    "/dashboard/runs",
    "/dashboard/runs?fragment=1",
    "/dashboard/runs?state=SLOW",
    "/dashboard/runs?model=gpt-4.1&failure_type=loop",
    "/dashboard/runs?task=customers",
    "/dashboard/runs?sort=peak",
    "/dashboard/runs?tenant=acme&outcome=failure",
    "/dashboard/runs/{run}",
    "/dashboard/health",
    "/dashboard/experiments",
    "/dashboard/experiments/routing-2",
    "/api/runs",
    "/api/runs/{run}",
    "/api/health-summary",
)


@contextlib.contextmanager
def gateway(path: str, upstream: str) -> Iterator[str]:
    """A gateway in a process of its own."""
    settings = {
        "GATEWAY_STORAGE__PATH": path,
        "GATEWAY_STORAGE__RETENTION_DAYS": "0",
        "GATEWAY_DEFAULT_UPSTREAM__API_BASE": upstream,
        "GATEWAY_LOGGING__LEVEL": "error",
    }
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--port", str(port)]
    log = Path(path).with_suffix(".log")
    server = Server(command, port=port, log=log, env=clean_env() | settings)
    try:
        server.wait_ready("/healthz", _START_S)
        yield f"http://{LOOPBACK}:{port}"
    finally:
        server.stop()


def time_pages(url: str, run_id: str) -> None:
    """Milliseconds of each page: the first time, and the middle of some more."""
    with httpx.Client(base_url=url, timeout=120) as client:
        for page in PAGES:
            spent = []
            for _ in range(1 + _TIMES):
                began = time.perf_counter()
                answer = client.get(page.format(run=run_id))
                spent.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
            first, middle = spent[0], statistics.median(spent[1:])
            print(f"{page:46} first {first:6.0f} ms   then {middle:6.0f} ms")


def call_ms(url: str) -> float:
    """The median of some hundred completions, one after the other, of runs of ten steps."""
    spent = []
    with httpx.Client(base_url=url, timeout=120) as client:
        for number in range(_CALLS):
            history = [{"role": "user", "content": f"Task {number // 10}"}]
            history += [
                {"role": role, "content": f"{role} {turn}"}
                for turn in range(number % 10)
                for role in ("assistant", "user")
            ]
            began = time.perf_counter()
            client.post("/v1/chat/completions", json={"model": "gpt-4o", "messages": history})
            spent.append((time.perf_counter() - began) * 1000)
    return statistics.median(spent)


@contextlib.contextmanager
def watchers(url: str, count: int) -> Iterator[None]:
    """Open dashboards: each hears all events, and asks for the list as its script would."""
    done = threading.Event()

    def listen() -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{url}/api/events", timeout=120) as answer,
        ):
            for _ in answer.iter_lines():
                if done.is_set():
                    return

    def refresh() -> None:
        with httpx.Client(base_url=url, timeout=120) as client:
            while not done.wait(_REFRESH_S):
                client.get("/dashboard/runs?fragment=1")

    threads = [
        threading.Thread(target=work, daemon=True)
        for _ in range(count)
        for work in (listen, refresh)
    ]
    for thread in threads:
        thread.start()
    time.sleep(1)
    try:
        yield
    finally:
        done.set()


def main() -> None:
    """Measure and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder, ScriptedUpstream() as upstream:
        path = str(Path(folder) / "many.db")
        began = time.perf_counter()
        asyncio.run(write_runs(path, runs=runs, steps=_STEPS, now=time.time()))
        size = os.path.getsize(path) / 1e6
        print(f"{runs} runs written in {time.perf_counter() - began:.0f} s, {size:.0f} MB")
        with gateway(path, upstream.base_url) as url:
            time_pages(url, f"c-{runs - 1:06}.0")
            for _ in range(2):
                alone = call_ms(url)
                with watchers(url, _WATCHERS):
                    watched = call_ms(url)
                print(
                    f"a completion: {alone:.2f} ms alone, {watched:.2f} ms with {_WATCHERS} "
                    "dashboards open"
                )


if __name__ == "__main__":
    main()
