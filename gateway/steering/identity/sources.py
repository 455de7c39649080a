"""The headers and body fields in which clients send a conversation id, and how each is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from gateway.steering.identity.settings import ConversationSettings
from gateway.wire.coerce import as_mapping

MAX_ID_CHARACTERS = 255
FINGERPRINT = "fingerprint"
_ABSENT = frozenset({"null", "undefined", "none", "nil", "nan"})
# {{ id }}, ${ID}, $ID, <id>, {id}, %s, %(id)s: a template placeholder that was not filled in.
_UNFILLED = re.compile(
    rf"\{{\{{.{{0,{MAX_ID_CHARACTERS}}}\}}\}}|\$\{{[^}}]{{0,{MAX_ID_CHARACTERS}}}\}}"
    r"|^\$[A-Za-z_]\w*$|<[^<>]*>|^\{[^{}]*\}$"
    r"|%(?:\(\w*\)[sd]|s|d(?![0-9A-Fa-f]))"
)
# x-parent-session-id, x-codex-parent-thread-id, parent_conversation_id; not traceparent.
_PARENT_NAME = re.compile(r"(?:^|[-_])parent[-_](?:session|thread|conversation|task)(?:[-_]id)?$")
# Claude Code before it sent JSON: user_<hash>_account_<uuid or nothing>_session_<uuid>.
_USER_WITH_SESSION = re.compile(r"user_\w{0,128}_account_[\w-]{0,128}_session_([0-9A-Za-z-]+)")


def clean_id(value: object) -> str | None:
    """The value as an id, or None: 1-255 visible characters that are not a placeholder.

    An integer is read as its decimal digits.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    value = value.strip()
    if not 1 <= len(value) <= MAX_ID_CHARACTERS:
        return None
    if not value.isprintable() or any(map(str.isspace, value)):
        return None
    if value.lower() in _ABSENT or _UNFILLED.search(value):
        return None
    return value


def _json_member(name: str) -> Callable[[object], str | None]:
    def read(value: object) -> str | None:
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            return None
        return clean_id(as_mapping(parsed).get(name))

    return read


def _id_or_object(value: object) -> str | None:
    return clean_id(value.get("id")) if isinstance(value, dict) else clean_id(value)


_session_of_json = _json_member("session_id")
_parent_thread_of_json = _json_member("parent_thread_id")


def _thread_parent(value: object) -> str | None:
    # A thread of Codex that another started names it, or shares its session, which has the first
    # thread's id.
    return _parent_thread_of_json(value) or _session_of_json(value)


def _session_of_user(value: object) -> str | None:
    session = _session_of_json(value)
    if session is None and isinstance(value, str):
        found = _USER_WITH_SESSION.fullmatch(value.strip())
        session = clean_id(found[1]) if found else None
    return session


class HeaderSource(Struct, frozen=True, kw_only=True):
    """A header that may carry the id; `with_header` may add a second part (an agent's id)."""

    name: str
    read: Callable[[object], str | None] = clean_id
    with_header: str | None = None
    read_parent: Callable[[object], str | None] | None = None
    """Source of the id of the agent that started this one; without it, an agent with a second
    part belongs to the one without."""

    def find(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """(header, id), or None without a usable value."""
        raw = headers.get(self.name)
        value = None if raw is None else self.read(raw)
        if value is None:
            return None
        part = clean_id(headers.get(self.with_header)) if self.with_header else None
        return self.name, f"{value}/{part}" if part else value

    def find_parent(self, headers: Mapping[str, str]) -> str | None:
        """The id of the agent that started the one which `find` names, or None."""
        raw = headers.get(self.name)
        if raw is None:
            return None
        if self.read_parent is not None:
            return self.read_parent(raw)
        if self.with_header and clean_id(headers.get(self.with_header)):
            return self.read(raw)
        return None


class HeaderPattern(Struct, frozen=True, kw_only=True):
    """All headers with a given prefix and suffix, read in alphabetical order."""

    prefix: str
    suffix: str

    def find(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """(header, id), or None without a usable value."""
        shortest = len(self.prefix) + len(self.suffix)
        for name in sorted(name for name in headers if name.endswith(self.suffix)):
            if _PARENT_NAME.search(name):
                continue
            if name.startswith(self.prefix) and len(name) > shortest:
                value = clean_id(headers[name])
                if value is not None:
                    return name, value
        return None


class BodySource(Struct, frozen=True, kw_only=True):
    """A field of the body; `a.b` is the member `b` of the object `a`."""

    name: str
    read: Callable[[object], str | None] = clean_id
    through_root: bool = False
    """The value is the id of an earlier response; the conversation id is looked up from it."""

    def find(self, body: Mapping[str, object]) -> str | None:
        """The id, or None without a usable value."""
        outer, dot, inner = self.name.partition(".")
        found = body.get(outer)
        if dot:
            found = as_mapping(found).get(inner)
        return None if found is None else self.read(found)


HEADER_SOURCES: tuple[HeaderSource | HeaderPattern, ...] = (
    # Agents that name their conversation.
    HeaderSource(name="x-claude-code-session-id", with_header="x-claude-code-agent-id"),
    # The other members of this header, the turn's id and times, change with each call.
    HeaderSource(
        name="x-codex-turn-metadata", read=_json_member("thread_id"), read_parent=_thread_parent
    ),
    HeaderSource(name="thread-id"),
    HeaderSource(name="session-id"),
    HeaderSource(name="session_id"),
    HeaderSource(name="conversation_id"),
    HeaderSource(name="x-opencode-session"),
    HeaderSource(name="agent-session-id"),
    HeaderSource(name="goose-session-id"),
    HeaderSource(name="x-kilocode-taskid"),
    HeaderSource(name="x-zoo-session-id"),
    HeaderSource(name="x-qwen-code-session-id"),
    HeaderSource(name="x-client-session-id"),
    HeaderSource(name="x-interaction-id"),
    HeaderSource(name="x-openwebui-chat-id"),
    # Other gateways.
    HeaderSource(name="x-litellm-session-id"),
    HeaderSource(name="helicone-session-id"),
    HeaderSource(name="x-bf-session-id"),
    HeaderSource(name="x-switchyard-session-id"),
    # Common names.
    HeaderSource(name="x-session-id"),
    HeaderSource(name="x-session-affinity"),
    HeaderSource(name="x-thread-id"),
    HeaderPattern(prefix="x-", suffix="-session-id"),
)
BODY_SOURCES: tuple[BodySource, ...] = (
    BodySource(name="session_id"),
    BodySource(name="conversation", read=_id_or_object),
    BodySource(name="metadata.session_id"),
    BodySource(name="metadata.conversation_id"),
    BodySource(name="metadata.thread_id"),
    BodySource(name="metadata.chat_id"),
    BodySource(name="metadata.user_id", read=_session_of_user),
    BodySource(name="previous_response_id", through_root=True),
    BodySource(name="prompt_cache_key"),
)
EXPLICIT_HEADER = HeaderSource(name="x-conversation-id")
"""Wins over every other id."""
ID_SOURCES: tuple[HeaderSource | HeaderPattern | BodySource, ...] = (
    EXPLICIT_HEADER,
    *HEADER_SOURCES,
    *BODY_SOURCES,
)
"""All sources in the order in which they are read; the first usable value wins.

Configured headers come second. Never read: `user`, `safety_identifier`, keys, addresses, traces.
Source: design, section 5.
"""
WEAK_SOURCES = frozenset({"body:prompt_cache_key"})
"""Sources whose value some clients share between conversations, to hit the provider's cache."""


class Identity(Struct, frozen=True, kw_only=True):
    """A request's id, and the place where it was found.

    `source`: "header:<name>", "body:<field>" or "fingerprint"; `value`: None for a fingerprint.
    `parent`: the id of the agent that started this one, where the client sends it.
    """

    source: str
    value: str | None = None
    parent: str | None = None

    @property
    def exclusive(self) -> bool:
        """Whether the id names exactly one conversation, not a session of several agents."""
        return self.source == f"header:{EXPLICIT_HEADER.name}"

    @property
    def weak(self) -> bool:
        """Whether several conversations may share this id."""
        return self.source in WEAK_SOURCES


def identify(
    headers: Mapping[str, str],
    body: Mapping[str, object],
    settings: ConversationSettings,
    *,
    root_of: Callable[[str], str | None] | None = None,
) -> Identity:
    """The id that a request carries; the source is FINGERPRINT when it carries none.

    `headers` have lower-case names. `root_of` gives the id of the conversation that an earlier
    response (`previous_response_id`) belongs to, or None when it is not known.
    """
    parent = _parent_of(headers, body)
    if _may_carry_id(headers, settings):
        configured = (HeaderSource(name=name) for name in settings.id_headers)
        for header in (EXPLICIT_HEADER, *configured, *HEADER_SOURCES):
            found = header.find(headers)
            if found is not None:
                name, value = found
                if parent is None and isinstance(header, HeaderSource):
                    parent = header.find_parent(headers)
                parent = parent if parent != value else None
                return Identity(source=f"header:{name}", value=value, parent=parent)
    # Most requests have none of these fields: one set comparison instead of one look-up per source.
    for source in () if _BODY_KEYS.isdisjoint(body) else BODY_SOURCES:
        given = source.find(body)
        if given is not None and source.through_root:
            given = root_of(given) if root_of is not None else None
        if given is not None:
            parent = parent if parent != given else None
            return Identity(source=f"body:{source.name}", value=given, parent=parent)
    return Identity(source=FINGERPRINT, parent=parent)


def _parent_of(headers: Mapping[str, str], body: Mapping[str, object]) -> str | None:
    """The id of the conversation that started this one, in a header or field with such a name."""
    for name in headers:
        if "parent" in name and _PARENT_NAME.search(name):
            value = clean_id(headers[name])
            if value is not None:
                return value
    metadata = body.get("metadata")
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        if isinstance(name, str) and _PARENT_NAME.search(name):
            return clean_id(value)
    return None


_HEADER_NAMES = frozenset(
    source.name for source in (EXPLICIT_HEADER, *HEADER_SOURCES) if isinstance(source, HeaderSource)
)
_HEADER_SUFFIXES = tuple(s.suffix for s in HEADER_SOURCES if isinstance(s, HeaderPattern))
_BODY_KEYS = frozenset(source.name.partition(".")[0] for source in BODY_SOURCES)


def _may_carry_id(headers: Mapping[str, str], settings: ConversationSettings) -> bool:
    """Whether any header source could match; a quick test, as most requests carry no id."""
    return (
        bool(settings.id_headers)
        or not _HEADER_NAMES.isdisjoint(headers)
        or any(name.endswith(_HEADER_SUFFIXES) for name in headers)
    )
