"""Response headers and log fields about a steered request: names and numbers, no content."""

from __future__ import annotations

from typing import Any

from gateway.conversations.resolve import Resolved
from gateway.conversations.steering_result import SteeringResult
from gateway.steering.fsm import FSMState
from gateway.upstream.base import RawHeaders

STATE_HEADER = b"x-gateway-state"
_GUIDANCE_HEADER = b"x-gateway-guidance"


def identity_headers(resolved: Resolved) -> RawHeaders:
    """The headers that name the conversation of a request; a side request may belong to none."""
    named = resolved.conversation_id.encode("ascii", "replace")
    label = (b"x-gateway-identity", resolved.label.encode("ascii", "replace"))
    return [(b"x-gateway-conversation-id", named), label] if named else [label]


def steering_headers(result: SteeringResult, arm: str | None) -> RawHeaders:
    """The headers with the run's state and the actions on this call.

    `x-gateway-mode` is how the request is treated; the experiment's `arm` may have another name.
    """
    headers = [
        (b"x-gateway-mode", result.mode.encode()),
        (b"x-gateway-step", str(result.step).encode()),
        (STATE_HEADER, result.state.value.encode()),
    ]
    if arm is not None:
        headers.append((b"x-gateway-arm", arm.encode()))
    if result.latest is not None:
        readings = result.latest.readings
        headers.append((b"x-gateway-difficulty", b"%.4f" % result.latest.difficulty))
        headers.append((b"x-gateway-risk", b"%.4f" % result.latest.risk))
        headers.append((b"x-gateway-monitors", ",".join(readings.fired).encode()))
    if result.applies and (label := guidance_label(result)):
        headers.append((_GUIDANCE_HEADER, label.encode("ascii", "replace")))
    return headers


def unsteered_headers(reason: str) -> RawHeaders:
    """The header of a call that goes out without a decision."""
    return [(b"x-gateway-unsteered", reason.encode())]


def with_state(headers: RawHeaders, state: FSMState) -> RawHeaders:
    """The headers with another state of the run: its answer has changed it."""
    value = state.value.encode()
    return [(name, value if name == STATE_HEADER else old) for name, old in headers]


def without_guidance(headers: RawHeaders) -> RawHeaders:
    """The headers of a call that is sent without its guidance."""
    return [(name, value) for name, value in headers if name != _GUIDANCE_HEADER]


def guidance_label(result: SteeringResult) -> str:
    """`tier:pattern id` of what was injected, comma separated; a monitor text has no pattern."""
    decided = result.decided
    if decided is None:
        return ""
    labels = [item.label for item in decided.items]
    return ",".join(["skip:directive", *labels] if decided.directive else labels)


def log_notes(result: SteeringResult, arm: str | None) -> dict[str, Any]:
    """Steering's fields of the canonical log line; names and numbers, no content."""
    notes: dict[str, Any] = {
        "mode": result.mode,
        "step": result.step,
        "state": result.state.value,
    }
    if arm is not None:
        notes["arm"] = arm
    if result.latest is not None:
        notes["difficulty"] = round(result.latest.difficulty, 4)
        notes["risk"] = round(result.latest.risk, 4)
        notes["fired"] = result.latest.readings.fired
    if label := guidance_label(result):
        notes["guidance"] = label
    if result.reasons:
        notes["reasons"] = result.reasons
    return notes
