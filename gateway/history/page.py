"""The history as one HTML page that loads nothing: its sums, and the worst stretches by step."""

import shlex
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup
from msgspec.structs import replace

from gateway import dashboard
from gateway.api.views import thresholds
from gateway.config import Settings
from gateway.conversations.records import scored_row
from gateway.dashboard import charts
from gateway.dashboard.charts import RunChart
from gateway.errors import ConfigError
from gateway.history.describe import what_the_person_did
from gateway.history.find import Found
from gateway.history.reading import CallCost, SessionReading, outcomes_of
from gateway.history.screen import (
    alarmed,
    day_of,
    days,
    notes,
    read_command,
    repeats,
    said_again,
    stretch_cost,
    sums_cost,
    trouble,
)
from gateway.history.session import HumanTurn, Session
from gateway.history.summary import Summary, Sums, WorstStretch, largest
from gateway.history.trouble import Stretch
from gateway.steering.fold import StepOutcome
from gateway.steering.monitors import MONITORS
from gateway.steering.policy import Policy
from gateway.steering.transcript.steps import Step, extract
from gateway.stores.records import CallRow, StepContent, StepRow
from gateway.stores.totals import RunTotals, step_severity, streaks
from gateway.text.page import page_templates, style_sheet
from gateway.text.secrets import mask_secrets

_ROWS = 12  # of projects and models, and the newest weeks
_WORDS = 200  # characters of what the person said, in the list
_BEFORE, _AFTER = 2, 1  # steps around a stretch that are shown with it
_MOST_STEPS = 30  # of one stretch; of a longer one, as many from its beginning and its end
_HEAD, _TAIL = 3000, 1500  # characters of a text that are on the page
_LONGEST_SECRET = 16_000  # a text is masked before it is cut: half of a secret has no form


def write_page(
    file: Path, summary: Summary, found: Sequence[Found], policy: Policy, options: Sequence[str]
) -> None:
    """Write the page; the files of the worst stretches are read again. `options`: as in
    `print_screen`. Raises ConfigError: the file cannot be written."""
    text = page(summary, found, policy, options)
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"--html: {file}: {exc.strerror or exc}") from exc


def page(
    summary: Summary, found: Sequence[Found], policy: Policy, options: Sequence[str] = ()
) -> str:
    """A self-contained HTML document about the sessions."""
    command = shlex.join(["gateway", "history", *options])
    transcripts = _transcripts(summary.trouble.worst, found, policy)
    worst = [
        {
            "number": number,
            "session": each.session,
            "title": mask_secrets(each.session.title),
            "stretch": each.stretch,
            "did": what_the_person_did(each.stretch, _WORDS),
            "cost": stretch_cost(each.stretch) or "cost unknown",
            "alarms": _alarms(each),
            "command": read_command(each, command),
            "transcript": transcripts.get(number),
        }
        for number, each in enumerate(summary.trouble.worst, 1)
    ]
    values = {
        "title": "Your agents' sessions",
        "style": Markup(style_sheet()),  # noqa: S704 - a file of this package
        "summary": summary,
        "days": days(summary),
        "cost": sums_cost(summary.total),
        "trouble": list(trouble(summary)),
        "alarmed": alarmed(summary),
        "notes": list(notes(summary)),
        "parts": {
            "Project": _rows(largest(summary.parts["project"], _ROWS)),
            "Model": _rows(largest(summary.parts["model"], _ROWS)),
            "Week of": _rows(sorted(summary.parts["week"].items())[-_ROWS:]),
        },
        "worst": worst,
        "draw": charts,
        "monitors": MONITORS,
        "live": False,
        "day_of": day_of,
        "repeats": repeats,
        "said_again": said_again,
    }
    folders = Path(__file__).parent, Path(dashboard.__file__).parent / "templates"
    return page_templates(*folders).get_template("page.html").render(values)


def _rows(rows: Sequence[tuple[str, Sums]]) -> list[dict[str, Any]]:
    """Sums by name, each with a bar of its share of the cost; of the tokens, without prices."""
    priced = any(sums.usd for _, sums in rows)
    sizes = [sums.usd if priced else float(sums.tokens.total) for _, sums in rows]
    bars = [charts.level(size, whole=sum(sizes) or 1.0) for size in sizes]
    return [
        {"name": name, "sums": sums, "cost": sums_cost(sums), "bar": bar}
        for (name, sums), bar in zip(rows, bars, strict=True)
    ]


def _alarms(worst: WorstStretch) -> list[dict[str, Any]]:
    """The alarms that the gateway would have raised in a stretch, each with its time."""
    times = {call.step: call.at for call in worst.session.calls}
    inside = [alarm for alarm in worst.session.alarms if alarm.step in worst.stretch.indices]
    return [{"alarm": alarm, "at": times.get(alarm.step)} for alarm in inside]


def _transcripts(
    worst: Sequence[WorstStretch], found: Sequence[Found], policy: Policy
) -> dict[int, dict[str, Any]]:
    """The transcript of each stretch by its number; each file is read once. A session that cannot
    be read again, such as one deleted in the meantime, has none."""
    files = {str(each.path): each for each in found}
    numbered = sorted(enumerate(worst, 1), key=lambda pair: pair[1].session.path)
    transcripts = {}
    for path, group in groupby(numbered, key=lambda pair: pair[1].session.path):
        try:
            file = files[path]
            sessions = {session.id: session for session in file.sessions(file.open())}
        except (KeyError, ConfigError):
            continue
        for number, each in group:
            session = sessions.get(each.session.id)
            if session is not None:
                transcripts[number] = _transcript(session, each.session, each.stretch, policy)
    return transcripts


def _transcript(
    session: Session, reading: SessionReading, stretch: Stretch, policy: Policy
) -> dict[str, Any]:
    """The chart of the run that a stretch is in, and its steps as they are shown. `after`: acts of
    the person behind the last one."""
    outcomes, starts = outcomes_of(session, policy)
    steps = extract(session.messages)
    part = _run_around(stretch, outcomes, len(steps))
    scored = {outcome.step.index: outcome for outcome in outcomes}
    calls = {call.step: call for call in reading.calls}
    rows: list[StepRow] = []
    for at in part:
        state = rows[-1].state if rows else "INIT"
        rows.append(_row(at, scored.get(at), calls.get(at), state))
    limits = thresholds(Settings())
    chart = RunChart(steps=rows, guidance={}, thresholds=limits, marked=stretch.indices)
    fired = Counter(name for row in rows for name in row.fired)
    peak = max((row.composite or 0.0 for row in rows), default=0.0)
    totals = RunTotals(composite_peak=peak, fired=fired)
    turns = defaultdict(list)
    for turn in reading.human:
        turns[bisect_left(starts, turn.position)].append(turn)
    cards = _cards(rows, stretch, turns, steps)
    after = turns.get(cards[-1]["step"].step_index + 1, ()) if cards else ()
    return {"chart": chart, "totals": totals, "cards": cards, "after": after}


def _run_around(stretch: Stretch, outcomes: Sequence[StepOutcome], steps: int) -> range:
    """The steps of the runs that a stretch is in, with its neighbours that are shown."""
    runs = {o.run for o in outcomes if o.step.index in stretch.indices}
    own = [o.step.index for o in outcomes if o.run in runs]
    first = min([*own, stretch.first - _BEFORE])
    last = max([*own, stretch.last + _AFTER])
    return range(max(0, first), min(last + 1, steps))


def _row(index: int, outcome: StepOutcome | None, call: CallCost | None, state: str) -> StepRow:
    """A step as the dashboard draws it, under its number in the session. `state`: of a step that
    was not scored."""
    row = (
        scored_row("", outcome, 0.0)
        if outcome is not None
        else StepRow(run_id="", step_index=index, at=0.0, state=state)
    )
    evidence = {name: mask_secrets(text) for name, text in row.evidence.items()}
    return replace(
        row,
        step_index=index,
        evidence=evidence,
        content=None,
        call=None if call is None else _call_row(call),
    )


def _call_row(call: CallCost) -> CallRow:
    tokens = call.tokens
    return CallRow(
        request_id="",
        model_requested=call.model,
        model_asked=call.model or "unknown",
        input_tokens=tokens.total - tokens.output,
        cached_tokens=tokens.cache_read,
        output_tokens=tokens.output,
        cost_usd=call.usd,
    )


def _cards(
    rows: Sequence[StepRow],
    stretch: Stretch,
    turns: Mapping[int, Sequence[HumanTurn]],
    steps: Sequence[Step],
) -> list[dict[str, Any]]:
    """The steps of a stretch and those next to it, the middle of a long one left out. `turns`: acts
    of the person before a step; `skipped`: steps before it that are left out."""
    near = range(stretch.first - _BEFORE, stretch.last + _AFTER + 1)
    shown = [at for at in range(len(steps)) if at in near]
    if len(shown) > _MOST_STEPS:
        shown = shown[: _MOST_STEPS // 2] + shown[-_MOST_STEPS // 2 :]
    cards, expected = [], shown[0] if shown else 0
    for row, stuck in zip(rows, streaks(rows), strict=True):
        at = row.step_index
        if at in shown:
            card = {
                "step": row,
                "severity": "none" if row.composite is None else step_severity(row, stuck),
                "own": at in stretch.indices,
                "said": _content(steps[at]),
                "turns": turns.get(at, ()),
                "skipped": at - expected,
            }
            cards.append(card)
            expected = at + 1
    return cards


def _content(step: Step) -> StepContent:
    actions = [
        replace(
            action,
            name=mask_secrets(action.name),
            arguments=_shown(action.arguments),
            observation=_shown(action.observation),
        )
        for action in step.actions
    ]
    thought, reasoning = _shown(step.thought), _shown(step.reasoning)
    return StepContent(thought=thought, reasoning=reasoning, actions=tuple(actions))


def _shown(text: str) -> str:
    """A text without its secrets, and without its middle if it is long."""
    if len(text) <= _HEAD + _TAIL:
        return mask_secrets(text)
    head = mask_secrets(text[: _HEAD + _LONGEST_SECRET])[:_HEAD]
    tail = mask_secrets(text[-_TAIL - _LONGEST_SECRET :])[-_TAIL:]
    return f"{head}\n… {len(text) - _HEAD - _TAIL:,} characters …\n{tail}"
