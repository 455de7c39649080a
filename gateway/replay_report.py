"""The replay's page: curves and tables in one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from gateway.playback import ALARM, Replayed

CURVE_POINTS = 20
"""Points of a mean curve: share of the run done, in steps of 5 %."""
WIDTH, HEIGHT = 320, 120
RUN_WIDTH, RUN_HEIGHT = 420, 46
EASY, HARD, VERY_HARD = 0.2, 0.6, 0.85

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2433;--dim:#667085;--line:#d7dce5;--bg:#fff;--bad:#c2410c;
--good:#0f766e;--other:#6d28d9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9f0;--dim:#98a2b3;--line:#344054;--bg:#101623;
--bad:#fb923c;--good:#2dd4bf;--other:#c4b5fd}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--bg);margin:2rem auto;
max-width:72rem;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.2rem .8rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}
.plots{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0}figcaption{color:var(--dim)}
.run{display:grid;grid-template-columns:1fr auto;gap:1rem;border-bottom:1px solid var(--line);
padding:.4rem 0}.run p{margin:0;overflow-wrap:anywhere}.note{color:var(--dim)}
svg{display:block}text{font:10px system-ui,sans-serif;fill:var(--dim)}
.grid{stroke:var(--line);stroke-width:1}.bad{stroke:var(--bad)}.good{stroke:var(--good)}
.other{stroke:var(--other)}.curve{fill:none;stroke-width:1.6}.dash{stroke-dasharray:3 3}
.FAST{fill:#14b8a6}.NORMAL{fill:#94a3b8}.SLOW{fill:#f97316}.SKIP{fill:#b91c1c}.INIT,.END{fill:none}
.alarm{fill:var(--bad)}
"""


def page(kept: Sequence[Replayed]) -> str:
    """A self-contained HTML document about the replayed runs; texts of the runs are escaped."""
    runs = [(r, r.played) for r in kept if r.played is not None]
    compared = any(replayed.other is not None for replayed, _ in runs)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Replay of {len(runs)} runs</title><style>{_STYLE}</style></head><body>",
        f"<h1>Replay of {len(runs)} runs</h1>",
        _legend(compared),
        "<h2>By source and model</h2>",
        _table([played for _, played in runs]),
        "<h2>Difficulty over the run, mean per outcome</h2>",
        _curves([played for _, played in runs]),
        "<h2>Runs</h2>",
        *[_run(replayed, played) for replayed, played in runs],
        "</body></html>",
    ]
    return "\n".join(parts)


def _legend(compared: bool) -> str:
    text = (
        "Curves: difficulty from 0 to 1, dashed lines at 0.2, 0.6 and 0.85. Band: state "
        "(green FAST, grey NORMAL, orange SLOW, red SKIP). Triangles: a monitor fired."
    )
    if compared:
        text += " Violet, dashed: the policy compared with."
    return f"<p class='note'>{escape(text)}</p>"


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        parts.setdefault((run["source"] or "-", run["model"] or "-"), []).append(run)
    rows = ["<tr><th>source<th>model<th>runs<th>failed<th>alarm, failed<th>alarm, successful</tr>"]
    for (source, model), members in sorted(parts.items()):
        failed = [run for run in members if run["success"] is False]
        fine = [run for run in members if run["success"] is True]
        cells = [str(len(members)), str(len(failed)), _alarms(failed), _alarms(fine)]
        row = "".join(f"<td>{escape(cell)}" for cell in (source, model, *cells))
        rows.append(f"<tr>{row}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _alarms(runs: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(ALARM in run['first'] for run in runs)}/{len(runs)}" if runs else "-"


def _curves(runs: Sequence[Mapping[str, Any]]) -> str:
    sources = sorted({run["source"] for run in runs})
    figures = []
    for source in sources:
        lines = [_frame(WIDTH, HEIGHT)]
        for success, style in ((False, "bad"), (True, "good"), (None, "grid")):
            members = [r for r in runs if r["source"] == source and r["success"] is success]
            if members:
                lines.append(_polyline(_mean_curve(members), WIDTH, HEIGHT, f"curve {style}"))
        svg = f"<svg width='{WIDTH}' height='{HEIGHT}' role='img'>{''.join(lines)}</svg>"
        caption = f"{escape(source or '-')}: failed orange, successful green"
        figures.append(f"<figure>{svg}<figcaption>{caption}</figcaption></figure>")
    return f"<div class='plots'>{''.join(figures)}</div>"


def _mean_curve(runs: Iterable[Mapping[str, Any]]) -> list[float]:
    """Mean difficulty at 5 %, 10 %, ... of each run."""
    scores = [[step["difficulty"] for step in run["steps"]] for run in runs if run["steps"]]
    points = []
    for k in range(1, CURVE_POINTS + 1):
        at = [run[max(0, -(-k * len(run) // CURVE_POINTS) - 1)] for run in scores]
        points.append(sum(at) / len(at) if at else 0.0)
    return points


def _frame(width: int, height: int) -> str:
    lines = []
    for level in (EASY, HARD, VERY_HARD):
        y = _y(level, height)
        lines.append(f"<line class='grid dash' x1='0' x2='{width}' y1='{y}' y2='{y}'/>")
    lines.append(f"<line class='grid' x1='0' x2='{width}' y1='{height}' y2='{height}'/>")
    return "".join(lines)


def _y(level: float, height: int) -> str:
    return f"{height * (1 - level):.1f}"


def _polyline(values: Sequence[float], width: int, height: int, style: str) -> str:
    gap = width / max(len(values) - 1, 1)
    points = " ".join(f"{i * gap:.1f},{_y(value, height)}" for i, value in enumerate(values))
    return f"<polyline class='{style}' points='{points}'/>"


def _run(replayed: Replayed, played: Mapping[str, Any]) -> str:
    steps = played["steps"]
    outcome = {True: "successful", False: "failed", None: "outcome unknown"}[played["success"]]
    fired = sorted({name for step in steps for name in step["fired"]})
    notes = [outcome, f"{len(steps)} steps"]
    if fired:
        notes.append("fired: " + ", ".join(fired))
    if replayed.changes:
        notes.append(f"{len(replayed.changes)} steps differ, first {replayed.changes[0]['index']}")
    text = f"<p>{escape(played['id'])}<br><span class='note'>{escape('; '.join(notes))}</span></p>"
    return f"<div class='run'>{text}{_run_curve(replayed, steps)}</div>"


def _run_curve(replayed: Replayed, steps: Sequence[Mapping[str, Any]]) -> str:
    if not steps:
        return ""
    band = RUN_HEIGHT - 6
    gap = RUN_WIDTH / len(steps)
    parts = [_frame(RUN_WIDTH, band)]
    for i, step in enumerate(steps):
        state = escape(step["state"], quote=True)
        x = i * gap
        parts.append(f"<rect class='{state}' x='{x:.1f}' y='{band}' width='{gap:.1f}' height='6'/>")
        if step["fired"]:
            parts.append(f"<path class='alarm' d='M{x + gap / 2:.1f} 0l4 7h-8z'/>")
    style = "curve bad" if replayed.played and replayed.played["success"] is False else "curve good"
    parts.append(_polyline([step["difficulty"] for step in steps], RUN_WIDTH, band, style))
    if replayed.other is not None:
        other = [step["difficulty"] for step in replayed.other["steps"]]
        parts.append(_polyline(other, RUN_WIDTH, band, "curve other dash"))
    return f"<svg width='{RUN_WIDTH}' height='{RUN_HEIGHT}' role='img'>{''.join(parts)}</svg>"
