"""Headers out: the conversation, the run's state and the actions on a call, for client and log."""

from gateway.conversations.resolve import Resolved
from gateway.conversations.steering_result import SteeringResult
from gateway.exchange import Exchange

STATE_HEADER = b"x-gateway-state"
GUIDANCE_HEADER = b"x-gateway-guidance"


def note_identity(exchange: Exchange, resolved: Resolved) -> None:
    """Note the conversation of a request; a side request may belong to none."""
    exchange.notes["identity"] = resolved.label
    exchange.notes["conversation"] = resolved.conversation_id
    headers = exchange.response.headers
    if named := resolved.conversation_id.encode("ascii", "replace"):
        headers.append((b"x-gateway-conversation-id", named))
    headers.append((b"x-gateway-identity", resolved.label.encode("ascii", "replace")))


def note_steering(exchange: Exchange, result: SteeringResult, arm: str | None) -> None:
    """Note the run's state and the actions on this call in headers and log line: names and numbers.
    The mode is how the request is treated; the experiment's `arm` may have another name."""
    position = result.position
    guidance = _guidance_label(result)
    headers = exchange.response.headers
    notes = exchange.notes
    state = position.state.value
    notes |= {"mode": result.mode, "step": position.step, "state": state}
    headers.append((b"x-gateway-mode", result.mode.encode()))
    headers.append((b"x-gateway-step", str(position.step).encode()))
    headers.append((STATE_HEADER, state.encode()))
    if arm is not None:
        notes["arm"] = arm
        headers.append((b"x-gateway-arm", arm.encode()))
    if (latest := position.latest) is not None:
        notes["difficulty"] = round(latest.difficulty, 4)
        notes["fired"] = latest.readings.fired
        headers.append((b"x-gateway-difficulty", b"%.4f" % latest.difficulty))
        headers.append((b"x-gateway-monitors", ",".join(latest.readings.alarmed).encode()))
    if guidance:
        notes["guidance"] = guidance
        if result.applies:
            headers.append((GUIDANCE_HEADER, guidance.encode("ascii", "replace")))
    if result.reasons:
        notes["reasons"] = result.reasons


def _guidance_label(result: SteeringResult) -> str:
    """`tier:pattern id` of what was injected, comma separated; a monitor text has no pattern."""
    if result.decision is None or result.placed is None:
        return ""
    decided = result.decision.decided
    labels = [item.label for item in decided.items]
    return ",".join(["skip:directive", *labels] if decided.directive else labels)
