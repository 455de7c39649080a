"""What clients and the log are told about a steered request: names and numbers, no content."""

from __future__ import annotations

from typing import Any

from gateway.conversations.recall import Recalled
from gateway.conversations.steered import Steered
from gateway.upstream.base import RawHeaders


def identity_headers(recalled: Recalled) -> RawHeaders:
    """What tells the client which conversation its request was counted to."""
    return [
        (b"x-gateway-conversation-id", recalled.conversation_id.encode("ascii", "replace")),
        (b"x-gateway-identity", recalled.label.encode("ascii", "replace")),
    ]


def steering_headers(steered: Steered, arm: str | None) -> RawHeaders:
    """What tells the client where its run stands, and what was done about it.

    The mode is what happens to the request; `arm`, of an experiment, may have its own name.
    """
    headers = [
        (b"x-gateway-mode", steered.mode.encode()),
        (b"x-gateway-step", str(steered.step).encode()),
        (b"x-gateway-state", steered.state.value.encode()),
    ]
    if arm is not None:
        headers.append((b"x-gateway-arm", arm.encode()))
    if steered.latest is not None:
        readings = steered.latest.readings
        headers.append((b"x-gateway-difficulty", b"%.4f" % steered.latest.difficulty))
        headers.append((b"x-gateway-monitors", ",".join(readings.fired).encode()))
    if steered.applies and (label := guidance_label(steered)):
        headers.append((b"x-gateway-guidance", label.encode("ascii", "replace")))
    return headers


def guidance_label(steered: Steered) -> str:
    """`tier:pattern id` of what was injected, comma separated; a monitor text has no pattern."""
    decided = steered.decided
    if decided is None:
        return ""
    labels = [item.label for item in decided.items]
    return ",".join(["skip:directive", *labels] if decided.directive else labels)


def log_notes(steered: Steered, arm: str | None) -> dict[str, Any]:
    """Steering's share of the canonical log line; numbers and names, no content."""
    notes: dict[str, Any] = {
        "mode": steered.mode,
        "step": steered.step,
        "state": steered.state.value,
    }
    if arm is not None:
        notes["arm"] = arm
    if steered.latest is not None:
        notes["difficulty"] = round(steered.latest.difficulty, 4)
        notes["fired"] = steered.latest.readings.fired
    if label := guidance_label(steered):
        notes["guidance"] = label
    if steered.reasons:
        notes["reasons"] = steered.reasons
    return notes
