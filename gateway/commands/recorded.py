"""`gateway replay` and `gateway calibrate`: recorded runs through the same core, offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

FILES = "JSONL files (.gz too) or folders; - is standard input"


def add_parser(commands: Any) -> None:
    """Declare both commands."""
    _add_replay(commands)
    _add_calibrate(commands)


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser("replay", help="run recorded transcripts through steering")
    replay.add_argument("files", nargs="+", type=Path, help=FILES)
    replay.add_argument("--policy", type=Path, help="compare with the policy of this config file")
    replay.add_argument("--config", type=Path, help="the policy to replay under (default: ours)")
    replay.add_argument("--json", action="store_true", help="one object per run and line")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page with curves")
    replay.add_argument(
        "--evidence", action="store_true", help="the table of docs/evidence.md, on these runs"
    )
    replay.add_argument("--jobs", type=int, help="processes (default: one per core)")
    replay.set_defaults(run=_replay)


def _add_calibrate(commands: Any) -> None:
    calibrate = commands.add_parser("calibrate", help="fit the difficulty scorer to labelled runs")
    calibrate.add_argument("files", nargs="+", type=Path, help=FILES)
    calibrate.add_argument("--weights", type=Path, metavar="FILE", help="write the weights here")
    calibrate.add_argument("--seed", type=int, default=None, help="of folds and bootstrap")
    calibrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    calibrate.set_defaults(run=_calibrate)


def _replay(args: argparse.Namespace) -> int:
    from gateway.replay import load_policy, run_replay

    return run_replay(
        args.files,
        policy=load_policy(args.config) if args.config else None,
        other=load_policy(args.policy) if args.policy else None,
        as_json=args.json,
        html=args.html,
        evidence=args.evidence,
        jobs=args.jobs,
    )


def _calibrate(args: argparse.Namespace) -> int:
    from gateway.calibrate import SEED, run_calibrate

    seed = SEED if args.seed is None else args.seed
    return run_calibrate(args.files, weights=args.weights, as_json=args.json, seed=seed)
