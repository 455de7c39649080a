"""Short texts about recorded calls and stretches of trouble."""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

import orjson

from gateway.history.trouble import ReadStep, Stretch
from gateway.steering.evidence.commands import shell_command
from gateway.steering.transcript.steps import Action
from gateway.text.sanitize import one_line
from gateway.text.secrets import mask_repeated
from gateway.wire.coerce import as_mapping, as_text

_ABOUT = (
    *("plan", "file_path", "pattern", "query", "url", "path", "description", "prompt"),
    "target_file",
)
"""Arguments that say best what a call is about, in this order. Source: tools of the clients."""
_PATHS = ("file_path", "path", "target_file")
_LINE = 160
_SHORT = 60
_WORDS = 100
_TROUBLES = {
    "same failure": "the same failure again",
    "no news": "calls that brought nothing new",
    "reverted edit": "edits that undid earlier ones",
    "refused edit": "edits that were refused",
    "said before": "the same said again",
}
_ACTS = {"interrupt": "you interrupted", "reject": "you rejected", "message": "you said"}


def call_line(action: Action, limit: int = _LINE, *, short: bool = False) -> str:
    """One line about a call: its tool, and the command, file or question that it is about. `short`
    gives the name of a file without its folders."""
    name = action.name or "call"
    about = shell_command(action.name, action.arguments) or _about(action.arguments, short)
    return one_line(mask_repeated(f"{name}: {about}" if about else name), limit)


def _about(arguments: str, short: bool) -> str:
    try:
        values = as_mapping(orjson.loads(arguments))
    except orjson.JSONDecodeError:
        return arguments
    for key in _ABOUT:
        if text := as_text(values.get(key), ""):
            return PurePosixPath(text).name if short and key in _PATHS else text
    return arguments if values else ""


def what_happened(stretch: Stretch, steps: Sequence[ReadStep]) -> str:
    """The reasons of the alarms in a stretch, and its newest call."""
    calls = [action for step in steps for action in step.observed.step.actions]
    parts = [_reasons(steps)] if stretch.alarmed else []
    if stretch.human == "message":
        parts.append(_work(calls))
    elif calls:
        parts.append(call_line(calls[-1], _SHORT, short=True))
    elif steps:
        parts.append(f'"{one_line(steps[-1].observed.step.thought, _SHORT)}"')
    return mask_repeated("; ".join(filter(None, parts)))


def what_the_person_did(stretch: Stretch, limit: int = _WORDS) -> str:
    """The act that corrected a stretch, with the person's words; "" if nothing did."""
    if not stretch.human:
        return ""
    said = one_line(stretch.words, limit)
    return _ACTS[stretch.human] + (f': "{said}"' if said else "")


def _reasons(steps: Sequence[ReadStep]) -> str:
    """The monitors' reasons, else the kinds of trouble."""
    reasons: dict[str, str] = {}
    for step in steps:
        reasons |= {name: step.evidence[name] for name in step.fired if step.evidence.get(name)}
    if reasons:
        return "; ".join(reasons.values())
    troubles = Counter(step.trouble for step in steps if step.trouble)
    found = [f"{n} x {_TROUBLES.get(name, name)}" for name, n in troubles.most_common(2)]
    return ", ".join(found) or "the steps stayed hard"


def _work(calls: Sequence[Action]) -> str:
    """Calls by tool, such as `8 Edit, 3 Bash`."""
    names = Counter(action.name or "call" for action in calls)
    return ", ".join(f"{n} {name}" for name, n in names.most_common(3))
