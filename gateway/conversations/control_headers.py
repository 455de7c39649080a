"""Headers in: the client's orders to the gateway itself, and the tags of its run."""

import re
from collections.abc import Mapping

from gateway.errors import BadRequest
from gateway.steering.experiments import MODES
from gateway.values import Texts, Value

_TAG_PREFIX = "x-gateway-tag-"
_MOST_TAGS = 16
_TAG_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_LONGEST_TAG = 120
_OUTCOMES = ("success", "failure")


class ControlHeaders(Value):
    """The request headers that control the gateway itself."""

    mode: str | None = None  # on, shadow or off; None = the config decides
    # success, failure or other, of the run before; None when it says nothing
    outcome: str | None = None
    # what is drawn into an arm of an experiment together; None = the conversation
    unit: str | None = None
    tags: Mapping[str, str] = {}  # labels of the run, by name
    agent: str = ""  # name of the client's program; "" when unknown
    experiment: str | None = None  # id, of a conversation that takes part in one; None else
    arm: str | None = None  # of that experiment; None else

    @classmethod
    def read(cls, headers: Texts) -> "ControlHeaders":
        """The orders in a request's headers. Raises: BadRequest: a value that is not allowed;
        `param` names the header."""
        return cls(
            mode=_one_of(headers, "x-gateway-mode", MODES),
            outcome=_one_of(headers, "x-gateway-outcome", _OUTCOMES),
            unit=headers.get("x-gateway-experiment-unit"),
            tags=tags_of(headers),
            agent=headers.get("user-agent", "").split(" ")[0][:80],
        )


def _one_of(headers: Texts, name: str, allowed: tuple[str, ...]) -> str | None:
    value = headers.get(name)
    if value is None:
        return None
    if value not in allowed:
        raise BadRequest(f"{name} must be one of {', '.join(allowed)}", param=name)
    return value


def tags_of(headers: Texts) -> dict[str, str]:
    """The tags under which a client files its run, names in lower case; long values are cut, and
    other names left out: a tag never makes a request fail. They are not forwarded."""
    found: dict[str, str] = {}
    for header, value in headers.items():
        if not header.startswith(_TAG_PREFIX):
            continue
        name = header.removeprefix(_TAG_PREFIX)
        text = value.strip()[:_LONGEST_TAG]
        if _TAG_NAME.fullmatch(name) and text.isprintable() and text and len(found) < _MOST_TAGS:
            found[name] = text
    return found
