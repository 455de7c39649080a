"""A session's reading as one line of JSON."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.history.reading import SessionReading
from gateway.text.formatting import iso


def session_line(reading: SessionReading) -> str:
    """The reading as a JSON object and a line feed (docs/history.md has the keys)."""
    return orjson.dumps(session_view(reading), option=orjson.OPT_APPEND_NEWLINE).decode()


def session_view(reading: SessionReading) -> dict[str, Any]:
    """The reading in JSON types: counts, tokens, cost, trouble, and what was not read."""
    tokens = reading.tokens
    return {
        "id": reading.id,
        "agent": reading.agent,
        "version": reading.version,
        "project": reading.project,
        "parent": reading.parent or None,
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
        "compactions": reading.compactions,
        "tokens": tokens._asdict() | {"total": tokens.total},
        "usd": None if reading.usd is None else round(reading.usd, 6),
        "unpriced": sorted({c.model for c in reading.calls if c.usd is None and c.tokens.total}),
        "alarms": [
            {"step": a.step, "monitors": a.monitors, "state": a.state, "evidence": a.evidence}
            for a in reading.alarms
        ],
        "stretches": [
            {
                "first": s.first,
                "last": s.last,
                "happened": s.happened,
                "human": s.human or None,
                "words": s.words,
                "alarmed": s.alarmed,
                "tokens": s.tokens,
                "usd": [round(each, 6) for each in s.cost],
            }
            for s in reading.stretches
        ],
        "success": reading.outcome,
        "lines": reading.lines,
        "unread": [{"line": u.line, "reason": u.reason} for u in reading.unread],
    }
