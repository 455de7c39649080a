"""The request headers that control the gateway itself."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.conversations.run_tags import tags_of
from gateway.errors import BadRequest
from gateway.steering.experiments import MODES

_OUTCOMES = ("success", "failure")


class ControlHeaders:
    """What they say of one request.

    Raises:
        BadRequest: a value that is not allowed; `param` names the header.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.mode = _one_of(headers, "x-gateway-mode", MODES)
        self.outcome = _one_of(headers, "x-gateway-outcome", _OUTCOMES)
        self.unit = headers.get("x-gateway-experiment-unit")
        self.budget = headers.get("x-gateway-budget")
        self.tags = tags_of(headers)
        self.agent = headers.get("user-agent", "").split(" ")[0][:80]
        self.experiment: str | None = None
        self.arm: str | None = None


def _one_of(headers: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = headers.get(name)
    if value is None:
        return None
    if value not in allowed:
        raise BadRequest(f"{name} must be one of {', '.join(allowed)}", param=name)
    return value
