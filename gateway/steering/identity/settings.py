"""Settings of conversation identity."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2

# These identify a person, a key, a machine or a trace, never a conversation. Source: design,
# section 5.
REFUSED_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "forwarded",
        "proxy-authorization",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-api-key",
        "x-forwarded-for",
        "x-gateway-key",
        "x-goog-api-key",
        "x-real-ip",
    }
)
RUN_BOUNDARIES = ("settled_answer", "final_answer", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """Settings for grouping requests into conversations and runs.

    `id_headers`: further headers that carry a conversation id, read in this order right after
    `x-conversation-id`; letter case does not matter. `run_boundary`: what ends a run; see `Policy`.
    `fingerprint`: whether a request without an id is recognised by its history.

    Raises:
        ValueError: an unusable header name, or a value that is not allowed; it begins with the
            name of the field.
    """

    id_headers: tuple[str, ...] = ()
    run_boundary: str = "settled_answer"
    fingerprint: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.id_headers, tuple):
            raise ValueError(f"id_headers: must be a tuple of names, not {self.id_headers!r}")
        for name in self.id_headers:
            if not isinstance(name, str) or not _TOKEN.fullmatch(name):
                raise ValueError(f"id_headers: {name!r} is not a valid header name")
            if name.lower() in REFUSED_HEADERS:
                raise ValueError(f"id_headers: {name!r} does not name a conversation")
        object.__setattr__(self, "id_headers", tuple(name.lower() for name in self.id_headers))
        if self.run_boundary not in RUN_BOUNDARIES:
            allowed = ", ".join(RUN_BOUNDARIES)
            raise ValueError(f"run_boundary: must be one of {allowed}, not {self.run_boundary!r}")
        if not isinstance(self.fingerprint, bool):
            raise ValueError(f"fingerprint: must be true or false, not {self.fingerprint!r}")
