"""One session for reading: its steps with readings and cost, and what the person did between."""

from collections.abc import Iterator, Sequence

import orjson
from msgspec.structs import asdict
from rich.console import Console
from rich.text import Text

from gateway.core.decision_settings import Policy
from gateway.core.fold import StepOutcome
from gateway.core.step import Action, Step
from gateway.errors import ConfigError
from gateway.features.history.describe import call_line
from gateway.features.history.find import Found
from gateway.features.history.reading import SessionReading, is_alarm, outcomes_of, read_session
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from gateway.text.formatting import count, counted, iso, money, print_line
from gateway.text.sanitize import one_line, visible
from gateway.text.secrets import mask_repeated
from gateway.values import FieldDict

_CHARACTERS = 160
_RESULT_LINES = 3


def find_session(found: Sequence[Found], name: str) -> tuple[Session, str]:
    """The session whose id begins with `name`, and its file; files named like it are read first.
    Raises ConfigError: no session has this id, or several have."""
    ordered = sorted(found, key=lambda each: name.partition("/")[0] not in each.path.name)
    for each in ordered:
        if each.format is None:
            continue
        try:
            sessions = [s for s in each.sessions(each.open()) if s.id.startswith(name)]
        except ConfigError:
            continue
        exact = [s for s in sessions if s.id == name or not s.parent]
        if len(exact or sessions) > 1:
            ids = ", ".join(s.id for s in sessions[:5])
            raise ConfigError(f"history: {name!r} is the beginning of several ids: {ids}")
        if sessions:
            return (exact or sessions)[0], str(each.path)
    raise ConfigError(f"history: no session has an id that begins with {name!r}")


def steps_asked(text: str) -> range:
    """The steps in `--steps`: `A-B`, `A-` or `A`; all of them for "". Raises ConfigError."""
    if not text:
        return range(10**9)
    first, dash, last = text.partition("-")
    if first.isdigit() and (last.isdigit() or not last):
        if dash and not last:
            return range(int(first), 10**9)
        return range(int(first), int(last or first) + 1)
    raise ConfigError(f"--steps: {text!r} is not a range of steps such as 12-20")


def show(found: Sequence[Found], name: str, wanted: str, policy: Policy, console: Console) -> None:
    """Print the head of one session and the steps that are asked for. Raises ConfigError: the
    session or the steps do not exist."""
    session, path = find_session(found, name)
    asked = steps_asked(wanted)
    reading = read_session(session, policy, path)
    outcomes, starts = outcomes_of(session, policy)
    scored = {outcome.step.index: outcome for outcome in outcomes}
    steps = extract(session.messages)
    if not any(step.index in asked for step in steps):
        raise ConfigError(f"--steps: the session has the steps 0 to {len(steps) - 1}")
    print_line(console, _head(reading))
    console.print(visible(path), style="dim", markup=False)
    turns = iter([*reading.human, None])
    turn = next(turns)
    for step, start in zip(steps, starts, strict=True):
        while turn is not None and turn.position < start:
            if step.index in asked or step.index - 1 in asked:
                said = ""
                if turn.text:
                    said = f": {one_line(turn.text, 4 * _CHARACTERS)}"
                print_line(console, f"  you {_ACTS[turn.kind]}{said}", "cyan")
            turn = next(turns)
        if step.index in asked:
            _print_step(step, scored.get(step.index), reading, console=console)
    while turn is not None and steps[-1].index in asked:
        print_line(console, f"  you {_ACTS[turn.kind]}: {one_line(turn.text, 640)}", "cyan")
        turn = next(turns)


_ACTS = {"message": "said", "interrupt": "interrupted", "reject": "rejected the call"}


def _head(reading: SessionReading) -> str:
    cost = ""
    if reading.usd is not None:
        cost = f", {money(reading.usd)}"
    agent = f"{reading.agent} {reading.version}".strip()
    folder = reading.project
    names = ", ".join((reading.id, agent, folder or "unknown folder"))
    return (
        f"{one_line(names, 2 * _CHARACTERS)}: "
        f"{counted(reading.steps, 'step')}, {count(reading.tokens.total)} tokens{cost}"
    )


def _print_step(
    step: Step, outcome: StepOutcome | None, reading: SessionReading, console: Console
) -> None:
    usd = sum(call.usd or 0.0 for call in reading.calls if call.step == step.index)
    line = Text(f"{step.index:4}  ", style="bold")
    if outcome is not None:
        line.append(f"{outcome.difficulty:.2f} {outcome.state.value:7}")
    line.append(f" {money(usd)}" if usd else "", style="dim")
    if outcome is not None and (outcome.observed.trouble or is_alarm(outcome)):
        line.append(f"  {_signs(outcome)}", style="bold red" if is_alarm(outcome) else "yellow")
    console.print(line)
    if step.thought:
        print_line(console, f"      {one_line(mask_repeated(step.thought), 2 * _CHARACTERS)}", "")
    for action in step.actions:
        print_line(console, f"      {call_line(action)}", "green")
        for shown in _result(action):
            print_line(console, f"        {shown}", "dim")


def _signs(outcome: StepOutcome) -> str:
    reasons = [f"{name}: {why}" for name, why in outcome.readings.alarmed.items()]
    found = [*([outcome.observed.trouble] if outcome.observed.trouble else []), *reasons]
    return mask_repeated("; ".join(found))


def _result(action: Action) -> Iterator[str]:
    lines = [line for line in visible(action.observation[:20_000]).splitlines() if line.strip()]
    for line in lines[:_RESULT_LINES]:
        yield one_line(mask_repeated(line), _CHARACTERS)
    if len(lines) > _RESULT_LINES:
        yield f"... {len(lines) - _RESULT_LINES} more lines"


def session_line(reading: SessionReading) -> str:
    """The reading as a JSON object and a line feed (docs/history.md has the keys)."""
    return orjson.dumps(session_view(reading), option=orjson.OPT_APPEND_NEWLINE).decode()


def session_view(reading: SessionReading) -> FieldDict:
    """The reading in JSON types: counts, tokens, cost, alarms, and what was not read."""
    tokens = reading.tokens
    return {
        "id": reading.id,
        "agent": reading.agent,
        "version": reading.version,
        "project": reading.project,
        "parent": reading.parent or None,
        "kind": reading.order.kind or None,
        "task": reading.order.task or None,
        "title": reading.title,
        "file": reading.path,
        "started": None if reading.started is None else iso(reading.started),
        "ended": None if reading.ended is None else iso(reading.ended),
        "models": sorted({call.model for call in reading.calls if call.model}),
        "steps": reading.steps,
        "calls": reading.tool_calls,
        "said": reading.acts("message"),
        "interrupts": reading.acts("interrupt"),
        "rejects": reading.acts("reject"),
        "compactions": reading.course.compactions,
        "paid_again": [asdict(loss) for loss in reading.course.losses],
        "seconds": {who: round(value, 3) for who, value in reading.spent.items()},
        "ending": asdict(reading.course.ending),
        "tokens": tokens._asdict() | {"total": tokens.total},
        "usd": None if reading.usd is None else round(reading.usd, 6),
        "unpriced": sorted({c.model for c in reading.calls if c.usd is None and c.tokens.total}),
        "alarms": [asdict(alarm) for alarm in reading.alarms],
        "success": reading.outcome,
        "lines": reading.lines,
        "unread": [unread._asdict() for unread in reading.unread],
    }
