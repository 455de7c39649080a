"""`gateway runs stop | pause | resume | held`: what the run's page does, from a terminal."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import orjson

from gateway.backends import Stores
from gateway.budgets.holds import known_subject
from gateway.commands.store import add_verb, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.stores.budgets import Action, Control, ControlStore
from gateway.text import formatting

_ID = "id of a run, or of a conversation with its sub-agents"


def add_verbs(verbs: Any) -> None:
    """Declare the verbs of `gateway runs` that hold runs."""
    for action in ("stop", "pause"):
        verb = add_verb(verbs, action, f"{action} a run", partial(_hold, action), existing=True)
        verb.add_argument("subject", help=_ID)
        verb.add_argument("--reason", default="", help="shown to the client")
    resume = add_verb(
        verbs, "resume", "let a stopped or paused run continue", _resume, existing=True
    )
    resume.add_argument("subject", help=_ID)
    add_verb(verbs, "held", "what is stopped or paused now", _held, existing=True)


async def _hold(
    action: Action, stores: Stores, _settings: Settings, args: argparse.Namespace
) -> None:
    subject, tenant = await _subject(stores, args.subject)
    control = Control(
        subject=subject, tenant=tenant, action=action, reason=args.reason, at=time.time()
    )
    await _store(stores).hold(control)
    _say(args, subject, action)


async def _resume(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    if not await _store(stores).release(args.subject):
        raise ConfigError(f"{args.subject!r} is not held: see `gateway runs held`")
    _say(args, args.subject, None)


async def _held(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    listed = await _store(stores).list_controls()
    for control in listed:
        if args.json:
            say(orjson.dumps(control).decode())
        else:
            when = formatting.ago(control.at)
            say(f"{control.subject}  {control.action}  {when}  {control.reason}".rstrip())
    if not listed and not args.json:
        say("nothing is held")


def _say(args: argparse.Namespace, subject: str, action: str | None) -> None:
    done = {"stop": "stopped", "pause": "paused", None: "may continue"}[action]
    shown = orjson.dumps({"subject": subject, "action": action}).decode()
    say(shown if args.json else f"{subject}: {done}")


async def _subject(stores: Stores, given: str) -> tuple[str, str]:
    found = await known_subject(stores.runs, given, None)
    if found is None:
        raise ConfigError(f"there is no run or conversation {given!r}")
    return found


def _store(stores: Stores) -> ControlStore:
    if stores.controls is None:
        raise ConfigError("this store keeps no stops: use the running gateway's /api")
    return stores.controls
