"""Log lines: one canonical line per request; JSON for machines, colours for a terminal."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import orjson
import structlog

from gateway.config import LoggingSettings

# What looks like a credential, wherever it stands: OpenAI and Anthropic keys, bearer tokens.
_SECRET = re.compile(r"(?i)\b(sk|rk|pk|gw)-[A-Za-z0-9_\-]{8,}|(?<=bearer )[^\s\"']+")
_REDACTED = "[redacted]"

EventDict = MutableMapping[str, Any]


def configure_logging(settings: LoggingSettings, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's loggers for the whole process.

    `format: auto` is console when the stream is a terminal, JSON otherwise.
    """
    stream = stream or sys.stderr
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    renderer: Any = (
        structlog.processors.JSONRenderer(serializer=_dumps)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    level = getattr(logging, settings.level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    _quiet_libraries(level)


def redact(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Replace whatever looks like a credential in the texts of a line."""
    for key, value in event.items():
        if isinstance(value, str) and _SECRET.search(value):
            event[key] = _SECRET.sub(_REDACTED, value)
    return event


def get_logger(name: str) -> Any:
    """A structlog logger whose lines carry `component=<name>`."""
    return structlog.get_logger(component=name)


def _dumps(value: Any, default: Any = str, **_: Any) -> str:
    return orjson.dumps(value, default=default).decode("utf-8", "replace")


class _Forward(logging.Handler):
    """Standard-library records, as structlog lines."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(component=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


def _cut_on_purpose(record: logging.LogRecord) -> bool:
    # A response that is broken off after its error event, so that nobody takes it for complete.
    return "without completing response" not in record.getMessage()


def _quiet_libraries(level: int) -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Forward)]:
        root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(max(level, logging.WARNING))
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(logging.WARNING)
    if _cut_on_purpose not in uvicorn.filters:
        uvicorn.addFilter(_cut_on_purpose)
