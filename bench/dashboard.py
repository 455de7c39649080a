"""`python -m bench.dashboard [RUNS]`: how fast the pages are over 10,000 runs with 200,000 steps,
and what people who watch them cost the proxy.

`--cpu` instead asks what each page costs in processor time, of the gateway and of its database, as
a multiple of the same page over an empty store; a page of one run, session or experiment, over a
store of two runs. `first` is the look for which nothing is kept in the process, `beside` what is
counted after it, for which no page waits, `then` a look within the next 30 s. On SQLite, and on a
PostgreSQL server of its own. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from bench.client import LOOPBACK
from bench.processes import Server, clean_env, cpu_of, free_port
from bench.report import aligned, machine
from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.many_runs import one_run, write_runs
from steering_gateway_testing.postgres import PostgresServer, new_folder

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

_MORE_PAGES = (
    *("/dashboard?fragment=1", "/dashboard/runs?search=parser", "/dashboard/runs?search=zebra"),
    *("/dashboard/runs?severity=in-trouble", "/dashboard/runs?severity=at-risk&period=week"),
    *("/dashboard/runs?stopped=yes", "/dashboard/runs?monitor=streak", "/dashboard/runs?side=true"),
    *("/dashboard/runs?sort=duration", "/dashboard/runs?sort=cost", "/dashboard/runs?sort=tokens"),
    *(
        "/dashboard/runs?tag=team",
        "/dashboard/runs?agent=aider/0.86",
        "/dashboard/health?period=week",
    ),
    *("/dashboard/time?bucket=week&by=agent", "/dashboard/time?by=tenant", "/dashboard/audit"),
    *("/dashboard/patterns", "/dashboard/lessons", "/dashboard/week", "/dashboard/pilot"),
    *(
        "/dashboard/keys",
        "/api/runs?search=parser",
        "/api/sessions",
        "/api/usage",
        "/api/groups?by=model",
    ),
    *("/dashboard/sessions/{session}", "/api/sessions/{session}", "/api/conversations"),
    *("/dashboard/runs?fragment=1&every=true", "/dashboard/runs?model=gpt-4.1&every=true"),
    *("/dashboard/runs?sort=cost&severity=in-trouble", "/dashboard/runs?sort=cost&search=parser"),
    *("/dashboard/runs?sort=cost&period=week", "/dashboard/runs?sort=updated_at"),
    *("/dashboard/runs?fragment=1&model=none", "/dashboard/runs?fragment=1&failure_type=none"),
)
_LOOKS = ("first", "beside", "then")
_CPU_TIMES = 10
_QUIET_S = 0.3  # longer than a page's count waits before it begins
_QUIET_CPU_S = 0.002
_FEW = 2  # runs beside which a page of one run, session or experiment is measured
_AT_MOST = 10.0
"""How often the processor time of an empty page a page may take."""


@contextlib.contextmanager
def served(storage: Mapping[str, str], log: Path, upstream: str) -> Iterator[Server]:
    """A gateway in a process of its own; `storage`: settings of that section."""
    settings = {
        **{f"GATEWAY_STORAGE__{name}": value for name, value in storage.items()},
        "GATEWAY_STORAGE__RETENTION_DAYS": "0",
        "GATEWAY_DEFAULT_UPSTREAM__API_BASE": upstream,
        "GATEWAY_LOGGING__LEVEL": "error",
    }
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--port", str(port)]
    server = Server(command, port=port, log=log, env=clean_env() | settings)
    try:
        server.wait_ready("/healthz", _START_S)
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def gateway(path: str, upstream: str) -> Iterator[str]:
    """The URL of a gateway over a SQLite file."""
    with served({"PATH": path}, Path(path).with_suffix(".log"), upstream) as server:
        yield f"http://{LOOPBACK}:{server.port}"


async def fill(storage: StorageSettings, runs: int) -> None:
    """Commit `runs` runs of 20 steps, as calls would."""
    stores = await open_stores(storage)
    chance = random.Random(7)
    now = time.time()
    try:
        for number in range(runs):
            started = now - (runs - number) * 60.0
            await stores.states.commit(one_run(chance, number, _STEPS, started))
        while await stores.runs.index_results():
            pass
    finally:
        await stores.close()


def cpu_of_pages(server: Server, last: int, database: int | None) -> dict[str, list[float]]:
    """Milliseconds of processor time of each page: at first, counted beside it, and then;
    `database`: its server's first process."""

    def spent() -> float:
        return server.cpu_s() + (cpu_of(database) if database else 0.0)

    def cost(address: str) -> float:
        begun = spent()
        client.get(address)
        return (spent() - begun) * 1000

    def beside() -> float:
        begun = before = spent()
        while True:
            time.sleep(_QUIET_S)
            if spent() - before < _QUIET_CPU_S:
                return (spent() - begun) * 1000
            before = spent()

    found = {}
    names = {"run": f"c-{last:06}.0", "session": f"c-{last:06}"}
    with httpx.Client(base_url=f"http://{LOOPBACK}:{server.port}", timeout=120) as client:
        for page in (*PAGES, *_MORE_PAGES):
            address = page.format(**names)
            for _ in range(2):  # templates are compiled, plans are made
                answer = client.get(address)
            if answer.status_code not in (200, 404):
                print(f"{page}: {answer.status_code} {answer.text[:80]}")
            looks = []
            for _ in range(_CPU_TIMES):
                # Any form clears what the pages keep.
                client.post("/dashboard/logout", data={"from": "bench"})
                looks.append((cost(address), beside(), cost(address)))
            found[page] = [statistics.median(costs) for costs in zip(*looks, strict=True)]
    return found


def print_cpu(runs: int, folder: Path, upstream: str) -> None:
    """A line for each page and kind of database."""
    postgres = PostgresServer(new_folder(), "-c", "listen_addresses=", "-c", "fsync=off")
    postgres.start()
    try:
        for kind in ("SQLite", "PostgreSQL"):
            measured = []
            for size in (0, _FEW, runs):
                name = f"of_{size}"
                settings = StorageSettings(path=str(folder / f"{name}.db"))
                storage = {"PATH": settings.path}
                first = None
                if kind == "PostgreSQL":
                    postgres.execute(f"CREATE DATABASE {name}")
                    storage = {"URL": postgres.url(name)}
                    settings = StorageSettings(url=Secret(storage["URL"]))
                    first = postgres.pids[0]
                asyncio.run(fill(settings, size))
                if first:
                    postgres.execute("VACUUM ANALYZE", name)
                with served(storage, folder / f"{name}.log", upstream) as server:
                    measured.append(cpu_of_pages(server, max(size, 1) - 1, first))
            head = ("empty ms", "first ms", "times", "beside ms", "empty ms", "then ms", "times")
            rows = [[kind, *head, ""]]
            for page, empty in measured[0].items():
                # Of one run, session or experiment there is no page over an empty store.
                if "{" in page or page.startswith("/dashboard/experiments/"):
                    empty = measured[1][page]
                row, is_over = [page], ""
                for look, own, of_empty in zip(_LOOKS, measured[2][page], empty, strict=True):
                    if look == "beside":  # no page waits for it
                        row.append(f"{own:.0f}")
                        continue
                    row += [f"{of_empty:.1f}", f"{own:.1f}", f"{own / of_empty:.1f}"]
                    is_over = "OVER" if own / of_empty > _AT_MOST else is_over
                rows.append([*row, is_over])
            print(f"\n{aligned(rows)}", flush=True)
        print(f"\n{machine()}; load {os.getloadavg()[0]:.1f}")
    finally:
        postgres.stop()


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
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=10_000)
    parser.add_argument("--cpu", action="store_true", help="processor time, over an empty page's")
    options = parser.parse_args()
    runs = options.runs
    with tempfile.TemporaryDirectory() as folder, ScriptedUpstream() as upstream:
        if options.cpu:
            print_cpu(runs, Path(folder), upstream.base_url)
            return
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
