"""Guards for every test, and the two servers that tests talk to."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import strategies

from gateway.config import LoggingSettings
from gateway.hooks import features
from gateway.observability.logging import configure_logging
from gateway.process.workers import freeze_startup_objects
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.loopback_only import OUTSIDE, loopback_only
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.receiver import Receiver
from tests.examples import load_profiles
from tests.memory import give_back, save_memory
from tests.memory_folder import use_memory_folder
from tests.postgres import CANNOT_START, empty_database

_OWN_PREFIXES = ("OPENAI_", "ANTHROPIC_", "GATEWAY_", "LITELLM_", "AZURE_", "GEMINI_")
# Without these LiteLLM downloads tables that it also carries.
_LOCAL_TABLES = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS")
_WORKERS = "PYTEST_XDIST_WORKER_COUNT"
_printed: dict[str, Any] = {}

# A gateway imports LiteLLM in the background, and that may outlast the test that started it.
os.environ |= dict.fromkeys(_LOCAL_TABLES, "True")

# A TLS context reads every certificate authority: 20 ms for each of thousands of clients, which
# speak HTTP to loopback.
_context = functools.cache(httpx.create_ssl_context)
httpx._transports.default.create_ssl_context = _context  # type: ignore[attr-defined]

# A test that is not about time waits as long as a busy machine needs, not httpx's five seconds.
for _phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _phase, ANSWER_S)

load_profiles()
use_memory_folder()
save_memory()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """In a new checkout hypothesis's first text takes a second and 200 MB, and leaves a file: once
    here, before there are workers."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        strategies.text().validate()


def pytest_collection(session: pytest.Session) -> None:
    """Workers that start together each load another share of the test modules first.

    The first to load a module rewrites its assertions and keeps the result for the others: in a
    fresh checkout that is half of the time that the collection takes.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    gc.disable()  # what is loaded stays: looking for garbage in it takes a tenth of the collection
    folder = Path(__file__).parent
    if [Path(arg).resolve() for arg in session.config.args] != [folder]:
        return
    share = slice(int(worker.removeprefix("gw")), None, int(os.environ[_WORKERS]))
    for file in sorted(folder.rglob("test_*.py"))[share]:
        name = ".".join(file.relative_to(folder.parent).with_suffix("").parts)
        # What is wrong with a module is told when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """From here on garbage is collected again, but not looked for in what the tests consist of."""
    freeze_startup_objects()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """What the test and its fixtures used is free by now."""
    give_back()


@pytest.fixture(autouse=True)
def _quiet_log() -> None:
    """Only errors are printed, to a stream that outlives the test, unless it configures its own."""
    if structlog.get_config()["logger_factory"] is not _printed.get("factory"):
        configure_logging(LoggingSettings(level="error"), sys.__stderr__)
        _printed["factory"] = structlog.get_config()["logger_factory"]


@pytest.fixture(scope="session", autouse=True)
def _loopback_only() -> Iterator[None]:
    """Refuse every connection and every name beyond loopback."""
    with loopback_only():
        yield


@pytest.fixture(autouse=True)
def outside_attempts() -> Iterator[list[str]]:
    """Hosts beyond loopback that were tried; one left at the end fails the test. A test of the
    guard clears the list."""
    OUTSIDE.clear()
    yield OUTSIDE
    assert not OUTSIDE, f"reached for hosts beyond loopback: {sorted(set(OUTSIDE))}"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's provider keys, base URLs, proxies and gateway settings."""
    for name in set(os.environ) - set(_LOCAL_TABLES):
        if name.upper().startswith(_OWN_PREFIXES) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_chosen_config() -> None:
    """Forget the `--config` of a command that an earlier test has run in this process."""
    if loaded := sys.modules.get("gateway.config.load"):
        loaded.CHOSEN_CONFIG.clear()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps no connection open, so that a gateway may stop."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=ANSWER_S, limits=limits) as client:
        yield client


@pytest.fixture
async def litellm_clients() -> AsyncIterator[None]:
    """Close the clients of a test that calls LiteLLM without the lane: LiteLLM keeps them as long
    as the process lives, but the loop of a test ends before, which Python warns of later."""
    yield
    import litellm

    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.cache_dict.clear()


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A scripted provider; an exception raised by its script fails the test."""
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with empty_database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The section `storage` of gateways that share a store: a file, or a PostgreSQL database."""
    if request.param == "sqlite":
        return {"path": str(tmp_path / "shared.db")}
    return {"url": request.getfixturevalue("postgres_url")}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of alerts; a test with one is skipped where the feature is gone."""
    if "alerts" not in features():
        pytest.skip("needs the feature alerts")
    with Receiver() as server:
        yield server


@pytest.fixture
def gateway_server(
    upstream: ScriptedUpstream, tmp_path: Path
) -> Iterator[Callable[..., AppServer]]:
    """Start gateways from settings mappings; without a default upstream they use `upstream`.

    They listen on a real socket, configured as in production but with a short drain and a database
    of the test's own, and stop after the test, the newest first. `server.app.runtime` gives access
    to a gateway's services.
    """
    from steering_gateway_testing.gateways import Gateways

    with Gateways(upstream.base_url, tmp_path) as gateways:
        yield gateways.start


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say that the tests of PostgreSQL did not run, where no server could be started."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    without = [reason for reason in reasons if CANNOT_START in reason]
    if without:
        terminalreporter.write_line(f"{len(without)} tests did not run. {without[0]}", yellow=True)
