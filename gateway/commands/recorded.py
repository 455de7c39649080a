"""`gateway replay` and `gateway calibrate`: recorded runs, offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError

FILES = "JSONL files (also .gz) or directories of them; - is standard input"


def add_parser(commands: Any) -> None:
    """Declare both commands."""
    replay = commands.add_parser("replay", help="replay recorded runs through the steering core")
    replay.add_argument("files", nargs="+", type=Path, help=FILES)
    replay.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="FILE|NAME",
        help="config file of a policy to compare with; or a routing policy to judge on tasks that "
        "several models ran, and repeated for more: learned, states, cheapest, dearest, "
        "always:MODEL (prices: `prices` of --config, else the price list)",
    )
    replay.add_argument("--config", type=Path, help="config file of the policy (default: built-in)")
    replay.add_argument("--json", action="store_true", help="one JSON object per run and line")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    replay.add_argument(
        "--patterns",
        default="",
        metavar="FILE",
        help="answer look-ups from this library: `starter`, or a file of `gateway patterns export` "
        "(default: each look-up counts as answered)",
    )
    replay.add_argument("--jobs", type=int, help="processes (default: one per core)")
    replay.set_defaults(run=_replay)
    calibrate = commands.add_parser("calibrate", help="fit the difficulty scorer to labelled runs")
    calibrate.add_argument("files", nargs="+", type=Path, help=FILES)
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
    from gateway.offline.calibrate import run_calibrate

    seed = {} if args.seed is None else {"seed": args.seed}
    return run_calibrate(args.files, weights=args.weights, as_json=args.json, **seed)
