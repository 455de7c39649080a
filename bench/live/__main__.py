"""`python -m bench.live`: run the arms on tasks into a folder, and report on the folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.client import LOOPBACK
from bench.live import agents, local, plan, report, results
from bench.live.plan import LEAST_K, Plan, Refused
from bench.live.running import Run
from bench.processes import free_port

_API = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
_DRY_MODEL = "openai/gpt-4o-mini"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with the reason on stderr."""
    options, rest = _parser().parse_known_args(arguments)
    try:
        if rest and rest[0] != "--":
            raise Refused(f"unknown: {' '.join(rest)} (options of the harness come behind --)")
        if options.verb == "run":
            _run(options, tuple(rest[1:]))
        else:
            _report(options)
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the same command with --continue runs what is missing", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run the arms; options behind -- go to the harness")
    run.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    run.add_argument("--model", help="with its provider, as the harness wants it: openai/gpt-5")
    run.add_argument("--agent", help="terminus-2, claude-code, mini-swe-agent ...")
    run.add_argument("--arms", default="off,on", help="off, shadow, on, NAME=FILE.yaml")
    run.add_argument("--k", type=int, default=LEAST_K, help="attempts per task and arm")
    run.add_argument("--tasks", default="", help="only these of the list, by name")
    run.add_argument("--seed", type=int, default=1, help="of the order")
    run.add_argument("--config", type=Path, help="config under that of every arm")
    run.add_argument("--upstream", help="where the gateways send requests")
    run.add_argument("--key-name", help="variable with the provider's key")
    run.add_argument("--harness", choices=["official", "local"], default="official")
    run.add_argument(
        "--harness-command", default="harbor", help="the official one's, or: uvx harbor"
    )
    run.add_argument("--continue", dest="again", action="store_true", help="run what is missing")
    run.add_argument("--dry", action="store_true", help="scripted provider, local harness")
    show = verbs.add_parser("report", help="success, cost and time of the arms")
    show.add_argument("folder", type=Path)
    show.add_argument("--html", type=Path, help="write the page here, too")
    return parser


def _run(options: argparse.Namespace, rest: tuple[str, ...]) -> None:
    folder = options.out.resolve()
    made = Plan.read(folder) if options.again else _planned(options, rest, folder)
    anthropic = made.agent == "claude-code" or made.model.startswith("anthropic/")
    key_name = options.key_name or ("ANTHROPIC_API_KEY" if anthropic else "OPENAI_API_KEY")
    Run(folder, made, key_name).whole()
    print(f"python -m bench.live report {options.out} --html report.html")


def _planned(options: argparse.Namespace, rest: tuple[str, ...], folder: Path) -> Plan:
    """Write the plan and the arms into an empty folder."""
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty: --continue runs what is missing there")
    if options.k < (1 if options.dry else LEAST_K):
        raise Refused(f"fewer than {LEAST_K} attempts show nothing: --k {LEAST_K}, or --dry")
    inside = options.dry or options.harness == "local"
    model = options.model or (_DRY_MODEL if options.dry else "")
    agent = options.agent or ("scripted" if options.dry else "")
    if not model or not agent:
        raise Refused("--model and --agent are needed")
    if inside and agent not in agents.LOCAL:
        raise Refused(f"the local harness has {', '.join(agents.LOCAL)}")
    url = f"http://{LOOPBACK}:{free_port()}/v1" if options.dry else _upstream(options, model, agent)
    listed = plan.chosen_tasks(inside, [name for name in options.tasks.split(",") if name])
    configs = plan.arm_configs(options.arms.split(","), options.config, url)
    made = Plan(
        model=model,
        agent=agent,
        harness=(sys.executable, "-m", local.__name__)
        if inside
        else tuple(options.harness_command.split()),
        options=rest,
        dataset={name: str(listed[name]) for name in ("dataset", "version", "of", "rule")},
        arms=tuple(configs),
        k=options.k,
        seed=options.seed,
        dry=options.dry,
        upstream=url,
        trials=plan.ordered(listed["tasks"], list(configs), options.k, options.seed),
    )
    plan.versions(made)  # refuses before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    made.write(folder)
    plan.write_arms(folder, configs)
    plan.write_prices(folder, model)
    (folder / "trials").mkdir()
    return made


def _upstream(options: argparse.Namespace, model: str, agent: str) -> str:
    provider = "anthropic" if agent == "claude-code" else model.partition("/")[0]
    asked = options.upstream or os.environ.get(f"{provider.upper()}_BASE_URL") or _API.get(provider)
    if not asked:
        raise Refused(f"no address is known of {provider}: --upstream URL")
    return str(asked)


def _report(options: argparse.Namespace) -> None:
    found = results.read(options.folder)
    report.print_report(found, Console(width=None if sys.stdout.isatty() else 140))
    if options.html:
        options.html.write_text(report.page(found), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
