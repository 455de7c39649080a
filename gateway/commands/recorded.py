"""`gateway replay` and `gateway calibrate`: recorded runs, offline."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from gateway.backends import Stores
from gateway.commands.store import as_line, kept, run_on_stores, say
from gateway.config import Settings
from gateway.errors import ConfigError

FILES = "JSONL files (also .gz) or directories of them; - is standard input"


def add_parser(commands: Any) -> None:
    """Declare both commands."""
    replay = commands.add_parser("replay", help="replay recorded runs through the steering core")
    replay.add_argument("files", nargs="+", type=Path, help=FILES)
    policy = "config file of a policy to compare with; or a routing policy to judge on tasks that "
    policy += "several models ran, and repeated for more: learned, states, cheapest, dearest, "
    policy += "always:MODEL (prices: `prices` of --config, else the price list)"
    named: dict[str, Any] = {"action": "append", "default": [], "metavar": "FILE|NAME"}
    replay.add_argument("--policy", help=policy, **named)
    replay.add_argument("--config", type=Path, help="config file of the policy (default: built-in)")
    replay.add_argument("--json", action="store_true", help="one JSON object per run and line")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    library = "answer look-ups from this library: `starter`, or a file of `gateway patterns export`"
    library += " (default: each look-up counts as answered)"
    replay.add_argument("--patterns", default="", metavar="FILE", help=library)
    replay.add_argument("--jobs", type=int, help="processes (default: one per core)")
    replay.set_defaults(run=_replay)
    summary = "fit the difficulty scorer to labelled runs, or the risk to your own runs"
    calibrate = commands.add_parser("calibrate", help=summary)
    files = f"{FILES}; none = the stored runs of each tenant, as it is done once a night"
    calibrate.add_argument("files", nargs="*", type=Path, help=files)
    calibrate.add_argument("--config", type=Path, help="config file of the stored runs")
    weights = "write the weights to this file"
    calibrate.add_argument("--weights", type=Path, metavar="FILE", help=weights)
    calibrate.add_argument("--seed", type=int, help="seed of the cross-validation folds")
    calibrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    calibrate.set_defaults(run=_calibrate)


def _replay(args: argparse.Namespace) -> int:
    from gateway.offline.replay import load_policy, run_replay

    named: list[str] = []
    if args.policy:  # else without numpy, and the prices of models
        from gateway.offline.routing_policies import is_policy

        named = [name for name in args.policy if is_policy(name)]
    files = [Path(name) for name in args.policy if name not in named]
    if named and (files or args.html):
        raise ConfigError("--policy: routing policies are compared with each other only")
    if len(files) > 1:
        raise ConfigError("--policy: one config file can be compared with")
    return run_replay(
        args.files,
        policy=load_policy(args.config) if args.config else None,
        other=load_policy(files[0]) if files else None,
        routing=named,
        as_json=args.json,
        html=args.html,
        patterns=args.patterns,
        jobs=args.jobs,
    )


def _calibrate(args: argparse.Namespace) -> int:
    if not args.files:
        if args.weights or args.seed is not None:
            raise ConfigError("calibrate: --weights and --seed are for files of runs")
        return asyncio.run(run_on_stores(_fit_own, args))
    if args.config:
        raise ConfigError("calibrate: --config is for stored runs, without files")
    from gateway.offline.calibrate import run_calibrate

    seed = {} if args.seed is None else {"seed": args.seed}
    return run_calibrate(args.files, weights=args.weights, as_json=args.json, **seed)


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
