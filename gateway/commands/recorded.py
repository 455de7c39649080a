"""`gateway replay`: recorded runs, offline; `gateway calibrate` is gone."""

import argparse
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError

FILES = "JSONL files (also .gz) or directories of them; - is standard input"


def add_parser(commands: Any) -> None:
    """Declare both commands."""
    replay = commands.add_parser("replay", help="replay recorded runs through the steering core")
    replay.add_argument("files", nargs="+", type=Path, help=FILES)
    replay.add_argument("--config", type=Path, help="config file of the policy (default: built-in)")
    replay.add_argument("--json", action="store_true", help="one JSON object per run and line")
    replay.add_argument("--jobs", type=int, help="processes (default: one per core)")
    replay.set_defaults(run=_replay)
    calibrate = commands.add_parser("calibrate", help="gone: nothing is fitted any more")
    calibrate.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    calibrate.add_argument("--config", help=argparse.SUPPRESS)
    calibrate.set_defaults(run=_calibrate)


def _replay(args: argparse.Namespace) -> int:
    from gateway.offline.replay import load_policy, run_replay

    return run_replay(
        args.files,
        policy=load_policy(args.config) if args.config else None,
        as_json=args.json,
        jobs=args.jobs,
    )


def _calibrate(args: argparse.Namespace) -> int:
    raise ConfigError(
        "calibrate: gone: the fitted risk said no more about the end of a run than its number of "
        "steps does; `control.on_trouble` acts on a failure that is repeated in spite of advice"
    )
