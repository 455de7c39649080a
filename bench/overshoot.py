"""`python -m bench.overshoot [CALLS]`: how far a budget is exceeded when 200 calls come at once.

Two gateways of two workers each on one SQLite file, and two gateways on one PostgreSQL database.
The provider waits before each answer, so that the calls are in flight together.
`tests/features/budgets/test_many_calls.py` holds the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from steering_gateway_testing import Reply, ScriptedUpstream, Usage
from steering_gateway_testing.processes import GatewayProcess
from tests.features.budgets.test_many_calls import CALL_USD, LEARNED, SHARE, ask_all, budget
from tests.postgres import empty_database

CALLS = 200
IN_FLIGHT_S = 3.0
CASES = (
    ("cold", "dollars, by the body and `max_tokens`"),
    ("calls", "calls"),
    ("blind", "dollars, nothing known beforehand"),
    ("warm", "dollars, after some calls of the model"),
)


def config(storage: dict[str, Any], room: int, upstream: str, workers: int) -> str:
    """Settings of one gateway, as JSON, with a budget for each case."""
    usd = {"usd": room * CALL_USD}
    return json.dumps(
        {
            "storage": {"busy_timeout_ms": 60_000, **storage},
            "server": {"workers": workers},
            "default_upstream": {"api_base": upstream},
            "control": {"store_wait_ms": 60_000},
            "budgets": [
                *(budget(name, **usd) for name in ("cold", "blind", "warm")),
                budget("calls", calls=room),
                budget("learning", calls=100 * LEARNED),
            ],
        }
    )


@contextlib.contextmanager
def two_gateways(folder: Path, text: str) -> Iterator[list[GatewayProcess]]:
    """Both as their own processes, on one store."""
    with contextlib.ExitStack() as both:
        started = []
        for name in ("one", "other"):
            (folder / name).mkdir(exist_ok=True)
            started.append(both.enter_context(GatewayProcess(folder / name, text)))
        yield started


def measure(storage: dict[str, Any], workers: int, calls: int) -> None:
    """Print a line for each case."""
    room = int(SHARE * calls)
    with tempfile.TemporaryDirectory() as name, ScriptedUpstream() as upstream:
        usage = Usage(prompt_tokens=10_000, completion_tokens=1_000)
        upstream.default = Reply("ok", usage=usage, first_byte_delay_s=IN_FLIGHT_S)
        text = config(storage, room, upstream.base_url, workers)
        for case, what in CASES:
            # New processes: what earlier cases taught of the model is forgotten.
            with two_gateways(Path(name), text) as gateways:
                if case == "warm":
                    for gateway in gateways:
                        asyncio.run(ask_all([gateway, gateway], "learning", LEARNED * workers * 2))
                before = len(upstream.requests)
                statuses = asyncio.run(ask_all(gateways, case, calls))
                sent = len(upstream.requests) - before
                found = httpx.get(f"{gateways[0].url}/api/budgets", params={"budget": case})
                (account,) = found.json()["accounts"]
            assert statuses.count(200) == sent == account["spent"]["calls"], statuses
            over = max(0, sent - room)
            print(
                f"  {what:40} {sent:4} of {calls} sent, room for {room}: over by {over} calls, "
                f"{over * CALL_USD:.4f} of {room * CALL_USD:.4f} dollars"
            )


def main() -> None:
    """Both stores."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    with tempfile.TemporaryDirectory() as folder:
        print("two gateways with two workers each, SQLite")
        measure({"path": str(Path(folder) / "both.db")}, 2, calls)
    with empty_database() as url:
        print("two gateways, PostgreSQL")
        measure({"url": url}, 1, calls)


if __name__ == "__main__":
    main()
