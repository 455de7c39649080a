"""Log lines: one canonical line per request; JSON for machines, colours for a terminal."""

import json
import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO, cast

import orjson

from gateway.config import LoggingSettings
from gateway.values import FieldDict

# Whatever looks like a credential, anywhere in a line: OpenAI and Anthropic keys, bearer tokens.
# Both cases are spelled out and the first letter comes first: a search that ignores case, or
# begins with a look back, tries every position of the line.
_KEY = re.compile(r"[sSrRpPgG](?<=\b[sSrRpPgG])(?:(?<![gG])[kK]|(?<=[gG])[wW])-[A-Za-z0-9_\-]{8,}")
_BEARER = re.compile(r"(?<=[bB][eE][aA][rR][eE][rR] )[^\s\"']+")
_BEARER_SIGN = "bearer "
_REDACTED = "[redacted]"
# The levels of methods that are not named for theirs, as structlog has them.
_LEVELS = {"warn": "warning", "exception": "error"}


# The set-up of structlog that the first line does.
_waiting: list[Callable[[], None]] = []


def configure_logging(
    settings: LoggingSettings, stream: TextIO | None = None, *, at_need: bool = False
) -> None:
    """Set up structlog and the standard library's loggers for the whole process. `format: auto` is
    console when the stream is a terminal, JSON otherwise. `at_need`: structlog waits for the first
    line, because importing it takes a quarter of a short command's time."""
    level = getattr(logging, settings.level.upper())
    _waiting[:] = [partial(_configure, settings, stream=stream, level=level)]
    if not at_need:
        _set_up()
    _quiet_libraries(level)


def _set_up() -> None:
    while _waiting:
        _waiting.pop()()


def _configure(settings: LoggingSettings, stream: TextIO | None, level: int) -> None:
    import structlog

    stream = stream or sys.stderr
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    renderer: Any = (
        structlog.processors.JSONRenderer(serializer=_dumps)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    structlog.configure(
        processors=[_complete, structlog.processors.format_exc_info, renderer, redact],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LossyStream(stream))),
        cache_logger_on_first_use=True,
    )


class LossyStream:
    """A stream that drops lines which cannot be written (a closed pipe, a full disk). The
    alternative is that the request fails which the line tells of, after it was answered."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        """Hand `text` to the stream, or drop it."""
        try:  # noqa: SIM105 - twice a line, and `suppress` takes four calls
            self._stream.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        """Push out what was written, or drop it."""
        try:  # noqa: SIM105
            self._stream.flush()
        except (OSError, ValueError):
            pass


_labels: FieldDict = {}


def label_lines(**labels: Any) -> None:
    """Have each line of this process carry these fields."""
    _labels.update(labels)


def _complete(_logger: Any, method: str, line: MutableMapping[str, Any]) -> FieldDict:
    """The line with the process's fields, its level and its time. structlog's own processors for
    these look at every context variable and make ten calls more."""
    level = _LEVELS.get(method, method)
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {**_labels, **line, "level": level, "timestamp": at}


def redact(_logger: Any, _name: str, line: Any) -> str:
    """Replace whatever looks like a credential in a rendered line; a search for plain text, which
    every key contains, costs a tenth of the expression."""
    text = str(line)
    lowered = text.lower()
    if "sk-" in lowered or "rk-" in lowered or "pk-" in lowered or "gw-" in lowered:
        text = _KEY.sub(_REDACTED, text)
    if _BEARER_SIGN in lowered:
        return _BEARER.sub(_REDACTED, text)
    return text


class _Logger:
    """Becomes structlog's at its first use."""

    def __init__(self, component: str):
        self._component = component

    def __getattr__(self, name: str) -> Any:
        if name == "_own":
            import structlog

            self._own = structlog.get_logger(component=self._component)
            return self._own
        import structlog

        _set_up()
        method = getattr(self._own, name)
        if structlog.is_configured():  # it stays what it is now, as with structlog's own cache
            setattr(self, name, method)
        return method


def get_logger(name: str) -> Any:
    """A structlog logger whose lines carry `component=<name>`."""
    return _Logger(name)


def _dumps(value: Any, default: Any = str, **_: Any) -> str:
    try:
        return orjson.dumps(value, default=default).decode("utf-8", "replace")
    except TypeError:  # half a surrogate pair in a client's JSON, a number of more than 64 bits
        return json.dumps(value, default=default)


class _Forward(logging.Handler):
    """Writes records of the standard library's loggers as structlog lines."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


# uvicorn warns of two things that are intended here: a response that ends early after its error
# event, so that no client takes it for complete, and a WebSocket upgrade answered as plain HTTP.
# And it adds a line to the one that says why the gateway cannot start.
_INTENDED = (
    "without completing response",
    "Unsupported upgrade",
    "No supported WebSocket",
    "Application startup failed",
)


def _is_unintended(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    return not any(known in message for known in _INTENDED)


def _quiet_libraries(level: int) -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Forward)]:
        root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(max(level, logging.WARNING))
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(logging.WARNING)
    if _is_unintended not in uvicorn.filters:
        uvicorn.addFilter(_is_unintended)
