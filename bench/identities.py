"""`python -m bench.identities`: ids that an outage splits, and guidance that it takes away.

Two gateways on one PostgreSQL, in turn; agents that send an id of their own begin before, in and
after an outage. An id is split when its answers, or its rows, are of more than one conversation; a
place is one where guidance was given, and is missing when a later request of the agent lacks it.
`--kills` ends a gateway with `kill -9` in the middle of each outage, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop

from bench.report import aligned, machine
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.fleet import Fleet, InTurn, balancer
from steering_gateway_testing.named_agents import Named, Provider
from steering_gateway_testing.outages import OUTAGES
from steering_gateway_testing.postgres import PostgresServer, new_folder
from tests.replicas.agents import all_ready
from tests.replicas.config import shared

_SPLIT = """
SELECT count(*) FROM (
    SELECT external_key FROM conversations GROUP BY 1 HAVING count(*) > 1
) AS several
"""
_BEFORE_S = 8.0
_AFTER_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One outage: ids, those whose answers or rows are of several conversations, places of
    guidance, those that a later request lacked, and answers with a wrong step."""

    outage: str
    ids: int
    split: int
    stored_split: int
    places: int
    missing: int
    wrong: int
    broken: int


async def measure(outage: str, options: argparse.Namespace, home: Path) -> Seen:
    """All agents through one outage."""
    provider, draw_s = Provider(), _BEFORE_S + options.seconds + _AFTER_S
    agents = [Named(f"{outage}-{number}") for number in range(options.ids)]
    with ExitStack() as stack:
        upstream = stack.enter_context(ScriptedUpstream())
        upstream.default = provider
        upstream.requests = type(upstream.requests)(maxlen=1)
        server = PostgresServer(new_folder(), "-c", "listen_addresses=")
        server.start()
        stack.callback(server.stop)
        url = server.url("postgres")
        storage = {"commit_limit_ms": 250, "probe_interval_s": 1.0, "start_wait_s": 60}
        fleet = stack.enter_context(Fleet(home, shared(upstream, url, **storage), options.gateways))
        limits = httpx.Limits(max_keepalive_connections=0)
        async with (
            balancer(lambda: fleet.ports, InTurn()) as place,
            httpx.AsyncClient(timeout=120, limits=limits) as http,
        ):
            lasts_s = options.turns * options.pause
            every_s = (draw_s - lasts_s) / options.ids

            async def later(number: int, agent: Named) -> None:
                await asyncio.sleep(number * every_s)
                await agent.work(http, place, options.turns, options.pause)

            tasks = [asyncio.ensure_future(later(*each)) for each in enumerate(agents)]
            await asyncio.sleep(_BEFORE_S)
            began = time.monotonic()
            with OUTAGES[outage](server):
                if options.kills:
                    await asyncio.sleep(options.seconds / 2)
                    fleet.gateways[0].process.kill()
                    await asyncio.to_thread(fleet.gateways[0].end)
                    fleet.gateways[0].close()
                    fleet.gateways[0].lines.clear()
                await asyncio.sleep(max(0.0, options.seconds - (time.monotonic() - began)))
            if options.kills:
                await asyncio.to_thread(fleet.gateways[0].__enter__)
            await asyncio.gather(*tasks)
        await all_ready(fleet)
        stored = int(server.execute(_SPLIT))
    if options.details:
        for agent in agents:
            if len(agent.homes) > 1 or agent.wrong or provider.missing[agent.name]:
                print(
                    json.dumps(
                        [
                            agent.name,
                            sorted(agent.homes),
                            agent.identities,
                            agent.wrong,
                            len(provider.missing[agent.name]),
                        ]
                    )
                )
    return Seen(
        outage=outage,
        ids=len(agents),
        split=sum(len(agent.homes) > 1 for agent in agents),
        stored_split=stored,
        places=provider.places,
        missing=provider.lost,
        wrong=sum(len(agent.wrong) for agent in agents),
        broken=sum(agent.broken for agent in agents),
    )


def table(seen: Sequence[Seen]) -> str:
    """One line an outage."""
    heads = ["outage", "ids", "split", "stored split", "places", "missing", "wrong", "broken"]
    names = ("outage", "ids", "split", "stored_split", "places", "missing", "wrong", "broken")
    return aligned([heads, *([str(getattr(each, name)) for name in names] for each in seen)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when no id was split and no guidance missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.identities", description=__doc__)
    default = ["nothing", "stopped", "frozen", "read-only"]
    parser.add_argument("--outages", nargs="+", choices=list(OUTAGES), default=default)
    parser.add_argument("--ids", type=int, default=200)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--turns", type=int, default=8, help="calls of each agent")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two calls")
    parser.add_argument("--seconds", type=float, default=20, help="of each outage")
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args(arguments)
    seen = []
    for outage in options.outages:
        with tempfile.TemporaryDirectory(prefix="gateway-bench-") as home:
            seen.append(uvloop.run(measure(outage, options, Path(home))))
    print(f"{machine()}; load {os.getloadavg()[0]:.0f}\n\n{table(seen)}")
    return 1 if any(each.split + each.stored_split + each.missing for each in seen) else 0


if __name__ == "__main__":
    raise SystemExit(main())
