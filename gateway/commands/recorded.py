"""`gateway replay` and `gateway calibrate`: recorded runs, offline."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from gateway.backends import Stores
from gateway.commands.store import as_line, kept, run_on_stores, say
from gateway.config import Settings

FILES = "JSONL files (also .gz) or directories of them; - is standard input"


def add_parser(commands: Any) -> None:
    """Declare both commands."""
    replay = commands.add_parser("replay", help="replay recorded runs through the steering core")
    replay.add_argument("files", nargs="+", type=Path, help=FILES)
    policy = "config file of a policy to compare with"
    replay.add_argument("--policy", type=Path, metavar="FILE", help=policy)
    replay.add_argument("--config", type=Path, help="config file of the policy (default: built-in)")
    replay.add_argument("--json", action="store_true", help="one JSON object per run and line")
    replay.add_argument("--jobs", type=int, help="processes (default: one per core)")
    replay.set_defaults(run=_replay)
    summary = "fit the risk to the stored runs of each tenant, as it is done once a night"
    calibrate = commands.add_parser("calibrate", help=summary)
    calibrate.add_argument("--config", type=Path, help="config file of the stored runs")
    calibrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    calibrate.set_defaults(run=_calibrate, changes=True)


def _replay(args: argparse.Namespace) -> int:
    from gateway.offline.replay import load_policy, run_replay

    return run_replay(
        args.files,
        policy=load_policy(args.config) if args.config else None,
        other=load_policy(args.policy) if args.policy else None,
        as_json=args.json,
        jobs=args.jobs,
    )


def _calibrate(args: argparse.Namespace) -> int:
    return asyncio.run(run_on_stores(_fit_own, args))


async def _fit_own(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    """Fit the risk to the stored runs now; gateways read the fit within `routing.refresh_s`."""
    from gateway.commands.report import own_risk_lines
    from gateway.learning.own_risk import OwnRisks
    from gateway.reporting.routing import own_risk_rows

    risks = OwnRisks(
        store=kept(stores.workloads, "calibrate: this store keeps no workloads"),
        learning=stores.learning,
        runs=stores.runs,
        settings=lambda: settings.routing,
        difficulty=settings.difficulty.load,
        rest=0.0,
    )
    rows = own_risk_rows(await risks.fit(), settings.difficulty.false_alarms)
    if args.json:
        return say(as_line(rows))
    for line in own_risk_lines(rows) if rows else ["no stored run has an outcome yet"]:
        say(line)
