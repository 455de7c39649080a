"""A gateway for the time of one command, in a thread of this process, on a free loopback port."""

import asyncio
import ctypes
import os
import re
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any, TextIO
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.app import build_app
from gateway.auth.authenticator import process_key
from gateway.budget_interface import NOTHING
from gateway.config import OPENAI_API_BASE, Settings, load_settings
from gateway.config.own_address import is_loopback_name
from gateway.config.storage import StorageSettings, is_there
from gateway.endpoints.edge import Edge
from gateway.errors import ConfigError
from gateway.features.budgets.accounts import Account
from gateway.features.budgets.settings import (
    BudgetControl,
    BudgetLimits,
    BudgetMatch,
    BudgetSettings,
    LadderStep,
)
from gateway.observability.logging import configure_logging
from gateway.process.running_gateways import state_database, state_folder
from gateway.process.start_checks import check
from gateway.server import GatewayServer, in_thread, uvicorn_config
from gateway.stores.controls import Control
from gateway.tasks import spawn
from gateway.text import formatting
from gateway.values import T, Texts

LOOPBACK = "127.0.0.1"
ANTHROPIC = "https://api.anthropic.com"
STOP_S = 15.0
_EVENTS_S = 1.0
_SETTLE_S = 0.05  # for the record of a call whose client has just ended
_MOST_LOG_BYTES = 5_000_000
_PR_SET_DUMPABLE = 4  # of prctl(2): with 0 no process of the same user reads this one's memory


def wrap_settings(config: Path | None, env: Texts, mode: str | None) -> Settings:
    """Returns the settings of a gateway for one command: the user's, with a free port. The
    database is the one that the config names, else that of the working folder if it has one,
    else one in the user's state folder: a command leaves no file in the project it works on.
    Raises ConfigError: the user's settings are refused."""
    server = {"HOST": LOOPBACK, "PORT": "0", "DRAIN_S": "1", "WORKERS": "1"}
    own = dict(env) | {f"GATEWAY_SERVER__{key}": value for key, value in server.items()}
    if mode is not None:
        own["GATEWAY_STEERING__MODE"] = mode
    # LiteLLM's names for the same addresses.
    if not own.get("OPENAI_BASE_URL") and own.get("OPENAI_API_BASE"):
        own["OPENAI_BASE_URL"] = own["OPENAI_API_BASE"]
    settings = load_settings(config, own)
    default = StorageSettings().path
    storage = settings.storage
    if not storage.shared and storage.path == default and not is_there(default):
        own["GATEWAY_STORAGE__PATH"] = str(state_database())
    if settings.auth.admin_key:  # which the command may be able to read
        own["GATEWAY_AUTH__ADMIN_KEY"] = process_key()
    if base := settings.default_upstream.messages_api_base or _messages_base(settings, own):
        own["GATEWAY_DEFAULT_UPSTREAM__MESSAGES_API_BASE"] = base
    return load_settings(config, own)


def _messages_base(settings: Settings, env: Texts) -> str | None:
    """Address for requests in Anthropic's dialect without the gateway; None: as set. An
    OPENAI_BASE_URL on another machine is some other provider's, which must not get the key for
    Anthropic; one on this machine may serve every dialect."""
    if chosen := env.get("ANTHROPIC_BASE_URL") or env.get("ANTHROPIC_API_BASE"):
        return chosen.rstrip("/").removesuffix("/v1") + "/v1"
    base = settings.default_upstream.api_base
    if base == OPENAI_API_BASE or base != env.get("OPENAI_BASE_URL"):
        return None
    if is_loopback_name(urlsplit(base).hostname or ""):
        return None
    return f"{ANTHROPIC}/v1"


class _Server(GatewayServer):
    """The gateway's server, with its loop and the runs it records."""

    def __init__(self, config: Any, app: Edge):
        super().__init__(config, app)
        self.runtime = app.runtime
        self.loop: asyncio.AbstractEventLoop | None = None
        self.run_ids: dict[str, None] = {}
        # Called when a person is asked whether a run may go on.
        self.asked: Callable[[Control], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to collect, and serve."""
        self.loop = asyncio.get_running_loop()
        self._collector = spawn(self._collect())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop collecting, then serving."""
        self._collector.cancel()
        await super().shutdown(sockets)

    async def _collect(self) -> None:
        with self.runtime.events.subscribe(tenant=None) as subscription:
            while True:
                for event in await subscription.take(_EVENTS_S):
                    if run_id := event.get("run_id"):
                        self.run_ids[str(run_id)] = None
                    if self.asked is not None and event.get("action") == "ask":
                        found = self.runtime.holds.find([str(event["subject"])])
                        if found is not None:  # nobody has answered yet
                            self.asked(found)


class OwnGateway(Struct, frozen=True):
    """A gateway that serves in another thread of this process."""

    settings: Settings  # as it was started with
    url: str  # without `/v1`
    server: _Server  # in its thread

    def run_ids(self) -> list[str]:
        """Ids of the runs of which a step was recorded, in order of their first step."""
        self.call(asyncio.sleep(_SETTLE_S))
        return list(self.server.run_ids)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the gateway's event loop, and wait for it."""
        assert self.server.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.server.loop).result(STOP_S)


@contextmanager
def own_gateway(settings: Settings) -> Iterator[OwnGateway]:
    """Serve while the block runs. Raises: ConfigError."""
    with suppress(AttributeError, OSError, TypeError):  # elsewhere than on Linux
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    log = state_folder() / "wrap.log"
    stream = _open_log(log)
    try:
        configure_logging(settings.logging, stream)
        check(settings)
        app = build_app(settings)
        server = _Server(uvicorn_config(app, settings), app)
        app.runtime.own_key = process_key()
        with in_thread(server, STOP_S, app.runtime) as url:
            yield OwnGateway(settings, url, server)
    finally:
        with suppress(OSError):  # lines that a full disk does not take: the command's status counts
            stream.close()


def _open_log(path: Path) -> TextIO:
    """The log's file; the null device if it cannot be opened. A long one begins again."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        long = path.exists() and path.stat().st_size > _MOST_LOG_BYTES
        return path.open("w" if long else "a", encoding="utf-8", buffering=1)
    except OSError:
        return open(os.devnull, "w", encoding="utf-8")


_MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0}
_AFTER = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|h|calls?|)")

# The agent is warned, asked to hand over its work, and then gets one last answer that says why: an
# error would make it try again.
_LADDER = (
    LadderStep(at=0.8, do="warn"),
    LadderStep(at=0.9, do="wrap_up"),
    LadderStep(at=1.0, do="stop"),
)


def wrap_budget(budget: str | None, stop_after: str | None) -> BudgetSettings | None:
    """The budget of one wrapped command; None without a limit. budget: US dollars. stop_after:
    `30m`, `2h`, `90s`, or a number of calls. Its name is drawn, so that nothing of another command
    counts on it. Raises ConfigError: a limit cannot be read."""
    limits = {}
    if budget is not None:
        with suppress(ValueError):
            limits["usd"] = float(budget.strip().removeprefix("$"))
        if not 0 < limits.get("usd", 0.0) < float("inf"):
            raise ConfigError(f"wrap: --budget: dollars such as 2.00, not {budget!r}")
    if stop_after is not None:
        found = _AFTER.fullmatch(stop_after.strip().lower())
        if found is None or float(found[1]) <= 0:
            raise ConfigError(f"wrap: --stop-after: 30m, 2h, 90s or 50 calls, not {stop_after!r}")
        if found[2] in _MINUTES:
            limits["minutes"] = float(found[1]) * _MINUTES[found[2]]
        else:
            limits["calls"] = max(1, round(float(found[1])))
    if not limits:
        return None
    return BudgetSettings(
        name=f"wrap-{token_hex(4)}",
        scope="tenant",
        limits=BudgetLimits(**limits),  # type: ignore[arg-type]
        ladder=_LADDER,
        stop_with="answer",
    )


def sub_agent_budget(calls: int | None) -> BudgetSettings | None:
    """The budget of each sub-agent of one wrapped command; None without a limit. Raises
    ConfigError: the limit is below 1."""
    if calls is None:
        return None
    if calls < 1:
        raise ConfigError(f"wrap: --sub-agents: a number of calls from 1, not {calls}")
    return BudgetSettings(
        name=f"sub-agents-{token_hex(4)}",
        match=BudgetMatch(sub_agent=True),
        limits=BudgetLimits(calls=calls),
    )


def limit_line(budget: BudgetSettings, control: BudgetControl) -> str:
    """The line at the start: the limit, and the assumed price of models without a known one."""
    limits = budget.limits.given()
    if control.unpriced == "refuse":
        counts = "is refused"
    else:
        counts = f"counts as {control.unpriced_price}"
    guessed = f"; a model of unknown price {counts}"
    most = ", ".join(formatting.amount(metric, limit) for metric, limit in limits.items())
    return f"budget: {most}{guessed if 'usd' in limits else ''}"


def used_line(
    account: Account, budget: BudgetSettings, now: float, *, stopped: bool = False
) -> str:
    """The line at the end: the used share of the budget, and whether it `stopped` calls. The limits
    are those of `budget`, unless the account has others: a row that was deleted has none."""
    given = budget.limits.given()
    limits = account.limits_of(given)
    spent = replace(account, reserved=NOTHING, leased=NOTHING)
    share, _ = account.share(given, now)
    used = (
        f"{formatting.amount(m, spent.used(m, now))} of {formatting.amount(m, most)}"
        for m, most in limits.items()
    )
    line = ", ".join(used) or "no limit"
    if stopped or share >= 1:
        up = "not enough left"
        if share >= 1:
            up = "used up"
        line += f"; {up}, further calls were not sent"
    if account.unpriced and "usd" in limits:
        line += f"; the price of {formatting.counted(account.unpriced, 'call')} is guessed"
    return f"budget: {line}"
