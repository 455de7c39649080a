"""`gateway replay`: recorded runs, offline."""

import argparse
from pathlib import Path
from typing import Any

FILES = "JSONL files (also .gz) or directories of them; - is standard input"


def add_parser(commands: Any) -> None:
    """Declare the command."""
    replay = commands.add_parser("replay", help="replay recorded runs through the steering core")
    replay.add_argument("files", nargs="+", type=Path, help=FILES)
    replay.add_argument("--config", type=Path, help="config file of the policy (default: built-in)")
    replay.add_argument("--json", action="store_true", help="one JSON object per run and line")
    replay.add_argument("--jobs", type=int, help="processes (default: one per core)")
    replay.set_defaults(run=_replay)


def _replay(args: argparse.Namespace) -> int:
    from gateway.offline.replay import load_policy, run_replay

    return run_replay(
        args.files,
        policy=load_policy(args.config) if args.config else None,
        as_json=args.json,
        jobs=args.jobs,
    )
