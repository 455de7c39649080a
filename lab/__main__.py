"""The commands of the laboratory: `python -m lab --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 2 for what it refuses."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"lab: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    evidence = commands.add_parser("evidence", help="alarms and routing, beside the reference")
    evidence.add_argument("--jobs", type=int, help="processes (default: one per core)")
    evidence.set_defaults(run=_evidence)
    alarms = commands.add_parser(
        "alarms", help="the tables of docs/evidence.md: alarms and second strikes"
    )
    alarms.add_argument("--verbose", action="store_true", help="list the alarms of all records")
    alarms.add_argument("files", nargs="+", type=Path, help="records, JSONL (also .gz)")
    alarms.set_defaults(run=_alarms)
    routing = commands.add_parser("routing", help="routing policies on tasks of several models")
    policies = "learned, states, cheapest, dearest or always:MODEL; repeated for more (default: "
    policies += "the first four)"
    routing.add_argument("--policy", action="append", default=[], metavar="NAME", help=policies)
    config = "config file with `prices` (default: the price list) and `routing.regret`"
    routing.add_argument("--config", type=Path, help=config)
    routing.add_argument("--json", action="store_true", help="one JSON array on stdout")
    routing.add_argument("--jobs", type=int, help="processes (default: one per core)")
    routing.set_defaults(run=_routing)
    summary = "outcomes that are read off runs, and trials of lessons"
    learning = commands.add_parser("learning", help=summary)
    learning.add_argument("--json", action="store_true", help="one JSON object on stdout")
    learning.add_argument("--trials", type=int, metavar="SEEDS", help="play trials of lessons")
    learning.add_argument("files", nargs="*", type=Path, help="recorded runs, JSONL (also .gz)")
    learning.set_defaults(run=_learning)
    pilot = commands.add_parser("pilot", help="play pilots, and judge them by the live functions")
    pilot.add_argument("--pilots", type=int, default=1000)
    pilot.add_argument("--p", type=float, help="failing without steering (default: a list)")
    pilot.add_argument("--r", type=float, default=0.5, help="of these recovered")
    pilot.add_argument("--d", type=float, default=0.3, help="of the others disturbed")
    pilot.add_argument("--look-every", type=int, default=1, help="runs between two looks")
    pilot.add_argument(
        "--most-runs", type=int, default=20_000, help="with an act, until it gives up"
    )
    pilot.add_argument("--seed", type=int, default=0)
    pilot.set_defaults(run=_pilot)
    replay = commands.add_parser("replay", help="replay as a page, or with a pattern library")
    library = "answer look-ups from `starter`, or a file of `gateway patterns export`"
    replay.add_argument("--patterns", metavar="FILE", help=library)
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    replay.add_argument("--policy", type=Path, help="config file of a policy to compare with")
    replay.add_argument("--config", type=Path, help="config file of the policy")
    replay.add_argument("--json", action="store_true", help="one JSON object per run and line")
    replay.set_defaults(run=_replay)
    counts = commands.add_parser("counts", help="planted forms, second tasks, gates and doses")
    counts.set_defaults(run=_counts)
    kinds = commands.add_parser("kinds", help="fit the kinds of messages, and evaluate them")
    kinds.add_argument("--sessions", type=Path, metavar="FILE", help="who spoke in each session")
    kinds.add_argument("--weights", type=Path, metavar="FILE", help="write them to this file")
    kinds.add_argument("files", nargs="+", type=Path, help="labelled messages, JSONL (also .gz)")
    kinds.set_defaults(run=_kinds)
    typed = commands.add_parser("typed", help="whether the list of ten holds what is said again")
    typed.add_argument("sessions", type=Path, help="sessions, JSONL (also .gz)")
    typed.add_argument("said", type=Path, help="labelled messages of them, JSONL")
    typed.set_defaults(run=_typed)
    reader = commands.add_parser("reader", help="how right a model reads what people type")
    reader.add_argument("--model", required=True, metavar="NAME", help="of the model to ask")
    base = "address of its Chat Completions (default: OPENAI_BASE_URL, else OpenAI's)"
    reader.add_argument("--api-base", default="", metavar="URL", help=base)
    whole = "their sessions, JSONL (also .gz); may be repeated: messages are shown whole"
    reader.add_argument("--sessions", type=Path, action="append", default=[], help=whole)
    loops = "planted loops and innocent repetitions, JSONL (also .gz); may be repeated"
    reader.add_argument("--planted", type=Path, action="append", default=[], help=loops)
    said = "labelled messages, JSONL, one file a project"
    reader.add_argument("files", nargs="*", type=Path, metavar="SAID", help=said)
    reader.set_defaults(run=_reader)
    second = commands.add_parser(
        "second-try", help="lessons at work: scripted agents, hidden rules"
    )
    second.add_argument("--seeds", type=int, default=1, help="how often everything is played")
    second.add_argument("--first", type=int, default=0, help="the first seed")
    second.add_argument("--arm", action="append", help="only this one (may be repeated)")
    second.add_argument("--worlds", default="", metavar="TEXT", help="only names with this text")
    second.add_argument("--runs", type=int, default=15, help="of each environment")
    second.add_argument("--out", type=Path, metavar="FILE", help="add all runs and lessons, JSONL")
    second.set_defaults(run=_second_try)
    loop = commands.add_parser("loop", help="what following texts earns in failing environments")
    loop.add_argument("--q", default="0,.25,.5,1", help="probabilities of following a text")
    loop.add_argument("--seeds", type=int, default=1, help="how often everything is played")
    loop.add_argument("--arm", action="append", help="only this one and off (may be repeated)")
    loop.add_argument("--worlds", default="", metavar="TEXT", help="only names with this text")
    loop.add_argument("--runs", type=int, default=12, help="of each environment")
    loop.add_argument("--jobs", type=int, default=1, help="gateways at a time")
    loop.add_argument("--json", action="store_true", help="one JSON object on stdout")
    loop.add_argument("--svg", type=Path, metavar="FILE", help="write the figure")
    loop.set_defaults(run=_loop)
    for command in (evidence, routing, counts, replay):
        command.add_argument("files", nargs="+", type=Path, help="recorded runs, JSONL (also .gz)")
    return parser


def _evidence(args: argparse.Namespace) -> int:
    from lab.evidence import run_evidence

    return run_evidence(args.files, jobs=args.jobs)


def _alarms(args: argparse.Namespace) -> int:
    from lab.alarms import run_alarms

    return run_alarms(args.files, verbose=args.verbose)


def _routing(args: argparse.Namespace) -> int:
    from gateway.offline.replay import load_policy
    from lab.prices import read_prices
    from lab.routing import run_routing

    policy = load_policy(args.config) if args.config else None
    about: dict[str, Any] = {"policy": policy, "prices": read_prices(args.config)}
    return run_routing(args.files, args.policy, **about, as_json=args.json, jobs=args.jobs)


def _replay(args: argparse.Namespace) -> int:
    from gateway.offline.playback import ReplayPolicy
    from gateway.offline.replay import Work, load_policy, run_replay
    from lab.comparison import Comparison, run_comparison
    from lab.library_answers import library_look_ups
    from lab.prices import read_prices
    from lab.replay_page import write_page

    policy = load_policy(args.config) if args.config else ReplayPolicy()
    answers = partial(library_look_ups, args.patterns) if args.patterns else None
    work = Work(policy=policy, answers=answers)
    if args.policy:
        other = load_policy(args.policy)
        prices = read_prices(args.config) | read_prices(args.policy)
        about: dict[str, Any] = {"policy": policy, "other": other, "prices": prices}
        work = Comparison(**about, lines=args.json, answers=answers)
    if args.html:
        return write_page(args.files, work, args.html)
    if isinstance(work, Comparison):
        return run_comparison(args.files, work)
    return run_replay(args.files, policy=policy, as_json=args.json, answers=answers)


def _pilot(args: argparse.Namespace) -> int:
    from lab.pilot import WORLDS, World, play, print_header, print_row

    given = None if args.p is None else (World(p=args.p, r=args.r, d=args.d),)
    print_header()
    for world in given or WORLDS:
        found = play(
            world,
            pilots=args.pilots,
            look_every=args.look_every,
            most_runs=args.most_runs,
            seed=args.seed,
        )
        print_row(world, found)
    return 0


def _learning(args: argparse.Namespace) -> int:
    from lab.learning import measure, summary_lines, trials

    lines: Iterator[str]
    if args.trials:
        lines = (json.dumps(each) for each in trials(range(args.trials)))
    else:
        found = measure(args.files)
        lines = iter([json.dumps(found)]) if args.json else summary_lines(found)
    for line in lines:
        print(line)
    return 0


def _counts(args: argparse.Namespace) -> int:
    from lab.counted import print_counts

    print_counts(args.files)
    return 0


def _kinds(args: argparse.Namespace) -> int:
    from lab.kinds import run_kinds

    return run_kinds(args.files, args.sessions, args.weights)


def _typed(args: argparse.Namespace) -> int:
    from lab.typed import measure, summary_lines

    for line in summary_lines(measure(args.sessions, args.said)):
        print(line)
    return 0


def _reader(args: argparse.Namespace) -> int:
    from lab.reader import Model, run_reader

    base = args.api_base or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    key = os.environ.get("OPENAI_API_KEY", "")
    model = Model(name=args.model, api_base=base.rstrip("/"), key=key)
    return run_reader(args.files, args.sessions, args.planted, model)


def _second_try(args: argparse.Namespace) -> int:
    from lab.second_try import ARMS, run_second_try

    seeds = range(args.first, args.first + args.seeds)
    arms = args.arm or ARMS
    for line in run_second_try(seeds, arms, args.worlds, args.runs, args.out):
        print(line)
    return 0


def _loop(args: argparse.Namespace) -> int:
    from lab.break_even import as_json, picture, tables
    from lab.loop import ARMS, MORE_ARMS, run_loop

    qs = sorted({float(each) for each in args.q.split(",")})
    if unknown := {*(args.arm or ())} - {*ARMS, *MORE_ARMS}:
        raise ConfigError(f"--arm: {min(unknown)} is not one of {', '.join(ARMS + MORE_ARMS)}")
    arms = list(dict.fromkeys(["off", *(args.arm or ARMS)]))
    numbers = {"seeds": args.seeds, "runs": args.runs, "jobs": args.jobs}
    trips = run_loop(qs, arms=arms, names=args.worlds, **numbers)
    for line in [json.dumps(as_json(trips))] if args.json else tables(trips):
        print(line)
    if args.svg:
        args.svg.write_text(picture(trips) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
