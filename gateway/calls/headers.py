"""The gateway's own headers. In: the client's orders to it, and the tags of its run. Out: the
conversation, the run's state and the actions on a call, for client and log."""

import re
from collections.abc import Mapping

from gateway.conversations.decision import Decision
from gateway.conversations.resolve import Resolved
from gateway.errors import BadRequest
from gateway.exchange import Exchange
from gateway.steering.experiments import MODES
from gateway.steering.identity import FINGERPRINT, MatchKind
from gateway.values import Texts, Value

STATE_HEADER = b"x-gateway-state"
GUIDANCE_HEADER = b"x-gateway-guidance"
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


def note_identity(exchange: Exchange, resolved: Resolved, conversation_id: str) -> None:
    """Note the conversation of a request."""
    label = identity_label(resolved.source, resolved.match.kind)
    exchange.notes["identity"] = label
    exchange.notes["conversation"] = conversation_id
    headers = exchange.response.headers
    headers.append((b"x-gateway-conversation-id", conversation_id.encode("ascii", "replace")))
    headers.append((b"x-gateway-identity", label.encode("ascii", "replace")))


def note_steering(exchange: Exchange, decision: Decision, arm: str | None) -> None:
    """Note the run's state and the actions on this call in headers and log line: names and numbers.
    The mode is how the request is treated; the experiment's `arm` may have another name."""
    position = decision.position
    guidance = _guidance_label(decision)
    headers = exchange.response.headers
    notes = exchange.notes
    state = position.state.value
    notes |= {"mode": decision.mode, "step": position.step, "state": state}
    headers.append((b"x-gateway-mode", decision.mode.encode()))
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
        if decision.applies:
            headers.append((GUIDANCE_HEADER, guidance.encode("ascii", "replace")))
    if decision.reasons:
        notes["reasons"] = [*decision.reasons]


def _guidance_label(decision: Decision) -> str:
    """`tier:pattern id` of what was injected, comma separated; a monitor text has no pattern."""
    if decision.conclusion is None or decision.placed is None:
        return ""
    decided = decision.conclusion.decided
    labels = [item.label for item in decided.items]
    return ",".join(["skip:directive", *labels] if decided.directive else labels)


def identity_label(source: str, kind: MatchKind) -> str:
    """Source of an identification, for people: `retry`, `fork`, `compaction`, or the id's source;
    `prefix`, `new` or `side` without an id from the client."""
    if kind in (MatchKind.RETRY, MatchKind.FORK, MatchKind.COMPACTION):
        return kind.value
    if source != FINGERPRINT:
        return source
    if kind is MatchKind.SIDE:
        return "side"
    if kind in (MatchKind.CONTINUE, MatchKind.SUMMARY):
        return "prefix"
    return "new"
