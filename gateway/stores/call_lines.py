"""Lines about recorded calls."""

import orjson

from gateway.core.step import Action
from gateway.steering.evidence.commands import shell_command
from gateway.text.sanitize import one_line
from gateway.text.secrets import mask_repeated
from gateway.wire.coerce import as_mapping, text_at

# Arguments that say best what a call is about, in this order. Source: tools of the clients.
_ABOUT = (
    "plan",
    "file_path",
    "pattern",
    "query",
    "url",
    "path",
    "description",
    "prompt",
    "target_file",
)
_LINE = 160


def call_line(action: Action, limit: int = _LINE) -> str:
    """One line about a call: its tool, and the command, file or question that it is about."""
    name = action.name or "call"
    about = shell_command(action.name, action.arguments) or _about(action.arguments)
    return one_line(mask_repeated(f"{name}: {about}" if about else name), limit)


def _about(arguments: str) -> str:
    try:
        values = as_mapping(orjson.loads(arguments))
    except orjson.JSONDecodeError:
        return arguments
    for key in _ABOUT:
        if text := text_at(values, key):
            return text
    if values:
        return arguments
    return ""
