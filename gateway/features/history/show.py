"""One session for reading: its steps with readings and cost, and what the person did between."""

import re
from collections.abc import Sequence
from contextlib import suppress

import orjson
from msgspec.structs import asdict
from rich.console import Console

from gateway.api.views import picked
from gateway.core.decision_settings import Policy
from gateway.errors import ConfigError
from gateway.features.history.find import Found
from gateway.features.history.reading import STEPS, SessionReading, outcomes_of, read_session
from gateway.features.history.screen import print_text
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from gateway.stores.call_lines import call_line
from gateway.text.formatting import iso_or_none
from gateway.text.sanitize import visible
from gateway.values import FieldDict


def find_session(found: Sequence[Found], name: str) -> tuple[Session, str]:
    """The session whose id is `name` or, alone, begins with it, or whose file is named so, and its
    file: of copies the one that has most. Files with the id in their paths are read first, others
    if none of them has it. Raises ConfigError: no session has this id, or several have."""
    stem = name.partition("/")[0]
    fitting: dict[str, tuple[Session, str]] = {}
    for each in sorted(found, key=lambda each: stem not in str(each.path)):
        path = str(each.path)
        if each.format is None or (fitting and stem not in path):
            continue
        with suppress(ConfigError):
            log = each.open()
            is_file = log.stem.startswith(name)
            for session in each.sessions(log):
                known, _ = fitting.get(session.id, (session, path))
                fits = is_file or session.id.startswith(name)
                if fits and len(known.calls) <= len(session.calls):
                    fitting[session.id] = session, path
    roots = [each for each, (session, _) in fitting.items() if not session.parent]
    ids = fitting.keys() & {name} or roots or fitting
    if len(ids) != 1:
        several = ", ".join(list(ids)[:5]) or "none"
        raise ConfigError(f"history: sessions whose ids begin with {name!r}: {several}")
    return fitting[min(ids)]


def steps_asked(text: str) -> range:
    """The steps in `--steps`: `A-B`, `A-` or `A`; all of them for "". Raises ConfigError."""
    asked = re.fullmatch(r"(\d+)(-?)(\d*)", text or "0-")
    if asked is None:
        raise ConfigError(f"--steps: {text!r} is not a range of steps such as 12-20")
    first, dash, last = asked.groups()
    return range(int(first), int(last or (dash and 10**9) or first) + 1)


def show(found: Sequence[Found], name: str, wanted: str, policy: Policy, console: Console) -> None:
    """Print the head of one session and the steps that are asked for. Raises ConfigError: the
    session or the steps do not exist."""
    session, path = find_session(found, name)
    asked = steps_asked(wanted)
    reading = read_session(session, policy, path)
    outcomes, _ = outcomes_of(session, policy)
    steps = [step for step in extract(session.messages) if step.index in asked]
    if reading.steps and not steps:
        raise ConfigError(f"--steps: the session has the steps 0 to {reading.steps - 1}")
    print_text(
        console,
        "show.txt",
        reading=reading,
        steps=steps,
        outcomes={outcome.step.index: outcome for outcome in outcomes},
        call_line=call_line,
        numbers=STEPS,
        visible=visible,
    )


def session_line(reading: SessionReading) -> str:
    """The reading as a JSON object and a line feed (docs/history.md has the keys)."""
    return orjson.dumps(session_view(reading), option=orjson.OPT_APPEND_NEWLINE).decode()


def session_view(reading: SessionReading) -> FieldDict:
    """The reading in JSON types: counts, tokens, cost, alarms, and what was not read."""
    tokens = reading.tokens
    return {
        **picked(reading, "id", "agent", "version", "title", "steps", "lines"),
        "project": reading.place,
        "folder": reading.project or None,
        "parent": reading.parent or None,
        "kind": reading.order.kind or None,
        "task": reading.order.task or None,
        "file": reading.path,
        "started": iso_or_none(reading.started),
        "ended": iso_or_none(reading.ended),
        "models": sorted({call.model for call in reading.calls if call.model}),
        "calls": reading.course.tool_calls,
        "said": reading.acts("message"),
        "interrupts": reading.acts("interrupt"),
        "rejects": reading.acts("reject"),
        "compactions": reading.course.compactions,
        "paid_again": [asdict(loss) for loss in reading.course.losses],
        "seconds": {who: round(value, 3) for who, value in reading.spent.items()},
        "ending": asdict(reading.course.ending),
        "tokens": tokens._asdict() | {"total": tokens.total},
        "steps_logged_before_end": reading.at_least("output"),
        "steps_without_usage": reading.at_least("usage"),
        "answers_missing": reading.at_least("steps") > 0,
        "usd": None if reading.usd is None else round(reading.usd, 6),
        "unpriced": sorted({c.model for c in reading.calls if c.usd is None and c.tokens.total}),
        "alarms": [asdict(alarm) for alarm in reading.alarms],
        "success": reading.outcome,
        "unread": [unread._asdict() for unread in reading.unread],
    }
