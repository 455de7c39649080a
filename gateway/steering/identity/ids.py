"""Ids of conversations, calls and agents: those that the gateway makes, and those of clients.

The headers and body fields in which clients send the id of a conversation are `ID_SOURCES`; each
says how it is read."""

import json
import re
from base64 import b32encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256

from gateway.core.decision_settings import RUN_BOUNDARIES
from gateway.steering.word_lists import word_list
from gateway.values import Texts, Value, frozen
from gateway.wire.coerce import as_mapping, mapping_at

# 120 bits: 24 characters of base 32 without padding.
_ID_BYTES = 15
# A system prompt begins with the agent's role; what follows is often a file listing or a diff.
SIGNATURE_CHARACTERS = 400

# Least length of a random call id: numbered ones are shorter (`call_0`), those of providers longer.
_UNIQUE_CHARACTERS = 16
_MAX_CALL_ID = 255
_DIGIT = re.compile(r"\d")
_CALENDAR = frozenset(word_list("ids", "calendar"))


def _joined(*parts: str) -> bytes:
    # The length before each part distinguishes ("ab", "c") from ("a", "bc").
    return "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")


def _text_id(*parts: str) -> str:
    digest = blake2b(_joined(*parts), digest_size=_ID_BYTES, person=b"gw-conversation1").digest()
    return "c-" + b32encode(digest).decode("ascii").lower()


def conversation_id(tenant: str, key: str, nonce: str = "") -> str:
    """The printable id of a conversation, "c-" and 24 letters or digits. `key`: the id the client
    sent, or the hexadecimal prefix hash of the first request; in that case `nonce`, a fresh random
    value, distinguishes conversations that begin with the same request."""
    return _text_id("conversation", tenant, key, nonce)


def child_id(parent: str, prefix_hash: bytes, taken: Iterable[str] = ()) -> str:
    """The id of the branch that forks from `parent` with a request of this hash, the same in every
    process; ids in `taken` are not used again."""
    used = frozenset(taken)
    child = parent
    while (child := _text_id("child", child, prefix_hash.hex())) in used:
        pass
    return child


def calls_hash(tenant: str, calls: Iterable[str]) -> bytes:
    """The key, 16 bytes, under which a store finds the conversation that made these calls last."""
    return blake2b(_joined(tenant, *calls), digest_size=16, person=b"gw-calls-made-01").digest()


def clean_call_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids of one turn's calls; empty unless every call has one of 1 to 255 characters."""
    if all(0 < len(i) <= _MAX_CALL_ID for i in ids):
        return tuple(ids)
    return ()


def looks_unique(calls: Iterable[str]) -> bool:
    """Whether all these call ids are long enough to be random, so that no two replies share one."""
    return all(len(call) >= _UNIQUE_CHARACTERS for call in calls)


def signature(system: str, tool_names: Iterable[str]) -> bytes:
    """A digest of an agent's tools and role, 16 bytes; it survives a rewritten history. The role is
    the start of the system text in lower case, without names of days and months and without any
    word that contains a digit (dates, versions, counters, hashes)."""
    # Twice as much is read as is used, so that dropped words do not change where the role ends.
    return _signature(system[: 2 * SIGNATURE_CHARACTERS], tuple(sorted(set(tool_names))))


@lru_cache(maxsize=512)
def _signature(start: str, tool_names: tuple[str, ...]) -> bytes:
    """Cached, because an agent sends the same system text and tools with every call."""
    words = [
        word
        for word in start.lower().split()
        if not _DIGIT.search(word) and word.strip(".,:;()") not in _CALENDAR
    ]
    role = " ".join(words)[:SIGNATURE_CHARACTERS]
    return blake2b(_joined(role, *tool_names), digest_size=16).digest()


def draw(experiment: str, unit: str) -> float:
    """A number in [0, 1), always the same for the pair, uniformly distributed over units. First 8
    bytes of a SHA-256 digest, big-endian, over 2^64. Each part is preceded by its length in bytes,
    so that no two pairs are the same text. Source: docs/names.md, the draw of an arm."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (experiment, unit)]
    joined = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return int.from_bytes(sha256(joined).digest()[:8], "big") / 2.0**64


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
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
# These identify a person, a key, a machine or a trace: runs that share one are not joined.
# fmt: off
REFUSED_HEADERS = frozenset({
    "api-key", "authorization", "cookie", "forwarded", "proxy-authorization", "traceparent",
    "tracestate", "user-agent", "x-api-key", "x-forwarded-for", "x-gateway-key", "x-goog-api-key",
    "x-real-ip",
})
# fmt: on


@frozen
class ConversationSettings:
    """Settings for grouping requests into conversations and runs. Raises ValueError: an unusable
    header name, or a value that is not allowed; it begins with the name of the field."""

    # further headers with a conversation id, any letter case, read in this order right after
    # `x-conversation-id`
    id_headers: tuple[str, ...] = ()
    run_boundary: str = "settled_answer"  # what ends a run; see `Policy`
    fingerprint: bool = True  # a request without an id is recognised by its history

    def __post_init__(self) -> None:
        for name in self.id_headers:
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"id_headers: {name!r} is not a valid header name")
            if name.lower() in REFUSED_HEADERS:
                raise ValueError(f"id_headers: {name!r} does not name a conversation")
        object.__setattr__(self, "id_headers", tuple(name.lower() for name in self.id_headers))
        if self.run_boundary not in RUN_BOUNDARIES:
            allowed = ", ".join(RUN_BOUNDARIES)
            raise ValueError(f"run_boundary: must be one of {allowed}, not {self.run_boundary!r}")


def clean_id(value: object) -> str | None:
    """The value (an integer as its digits) as an id: 1-255 visible characters, no placeholder."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    value = value.strip()
    usable = (
        1 <= len(value) <= MAX_ID_CHARACTERS
        and value.isprintable()
        and not any(map(str.isspace, value))
        and value.lower() not in _ABSENT
        and not _UNFILLED.search(value)
    )
    if usable:
        return value
    return None


def _json_member(name: str) -> Callable[[object], str | None]:
    def read(value: object) -> str | None:
        try:
            parsed = value
            if isinstance(value, str):
                parsed = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return clean_id(as_mapping(parsed).get(name))

    return read


def _id_or_object(value: object) -> str | None:
    if isinstance(value, dict):
        return clean_id(value.get("id"))
    return clean_id(value)


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
        if found:
            session = clean_id(found[1])
    return session


class HeaderSource(Value):
    """A header that may carry the id."""

    name: str  # in lower case
    # takes the id out of the header's value; None for an unusable one
    read: Callable[[object], str | None] = clean_id
    # header with a second part, such as an agent's id; None without one
    with_header: str | None = None
    # reads the id of the agent that started this one; None: an agent with a second part belongs to
    # the one without
    read_parent: Callable[[object], str | None] | None = None

    def find(self, headers: Texts) -> tuple[str, str, str | None] | None:
        """(header, id, id of the agent that started it), or None without a usable value."""
        raw = headers.get(self.name)
        if raw is None or (value := self.read(raw)) is None:
            return None
        part = None
        if self.with_header:
            part = clean_id(headers.get(self.with_header))
        parent = value if part else None
        if self.read_parent is not None:
            parent = self.read_parent(raw)
        return self.name, f"{value}/{part}" if part else value, parent


_SUFFIX = "-session-id"


class HeaderPattern:
    """All headers `x-...-session-id`, read in alphabetical order."""

    def find(self, headers: Texts) -> tuple[str, str, None] | None:
        """(header, id, None), or None without a usable value."""
        for name in sorted(name for name in headers if name.endswith(_SUFFIX)):
            fits = name.startswith("x-") and len(name) > len("x-" + _SUFFIX)
            if fits and not _PARENT_NAME.search(name) and (value := clean_id(headers[name])):
                return name, value, None
        return None


class BodySource(Value):
    """A field of the body; `a.b` is the member `b` of the object `a`."""

    name: str  # `a.b` is the member `b` of the object `a`
    # takes the id out of the value; None for an unusable one
    read: Callable[[object], str | None] = clean_id
    # the value is the id of an earlier response; the conversation id is looked up from it
    through_root: bool = False

    def find(self, body: Mapping[str, object]) -> str | None:
        """The id, or None without a usable value."""
        outer, dot, inner = self.name.partition(".")
        if dot:
            found = mapping_at(body, outer).get(inner)
        else:
            found = body.get(outer)
        if found is None:
            return None
        return self.read(found)


def _headers(names: str) -> list[HeaderSource]:
    return [HeaderSource(name=name) for name in names.split()]


HEADER_SOURCES: tuple[HeaderSource | HeaderPattern, ...] = (
    # Agents that name their conversation.
    HeaderSource(name="x-claude-code-session-id", with_header="x-claude-code-agent-id"),
    # The other members of this header, the turn's id and times, change with each call.
    HeaderSource(
        name="x-codex-turn-metadata", read=_json_member("thread_id"), read_parent=_thread_parent
    ),
    *_headers("thread-id session-id session_id conversation_id x-opencode-session"),
    *_headers("agent-session-id goose-session-id x-kilocode-taskid x-zoo-session-id"),
    *_headers("x-qwen-code-session-id x-client-session-id x-interaction-id x-openwebui-chat-id"),
    # Other gateways.
    *_headers("x-litellm-session-id helicone-session-id x-bf-session-id x-switchyard-session-id"),
    # Common names.
    *_headers("x-session-id x-session-affinity x-thread-id"),
    HeaderPattern(),
)
BODY_SOURCES: tuple[BodySource, ...] = (
    BodySource(name="session_id"),
    BodySource(name="conversation", read=_id_or_object),
    *(BodySource(name=f"metadata.{of}_id") for of in ("session", "conversation", "thread", "chat")),
    BodySource(name="metadata.user_id", read=_session_of_user),
    BodySource(name="previous_response_id", through_root=True),
    BodySource(name="prompt_cache_key"),
)
EXPLICIT_HEADER = HeaderSource(name="x-conversation-id")  # wins over every other id
# All sources in the order in which they are read, configured headers second; the first usable one
# wins. Never read: `user`, `safety_identifier`, keys, addresses, traces: several conversations
# share those.
ID_SOURCES = (EXPLICIT_HEADER, *HEADER_SOURCES, *BODY_SOURCES)
# Sources whose value some clients share between conversations, to hit the provider's cache.
WEAK_SOURCES = frozenset({"body:prompt_cache_key"})


class Identity(Value):
    """A request's id, and the place where it was found."""

    source: str  # "header:<name>", "body:<field>" or "fingerprint"
    value: str | None = None  # the client's id; None for a fingerprint
    parent: str | None = None  # id of the agent that started this one, where the client sends it

    @property
    def exclusive(self) -> bool:
        """Whether the id names exactly one conversation, not a session of several agents."""
        return self.source == f"header:{EXPLICIT_HEADER.name}"

    @property
    def weak(self) -> bool:
        """Whether several conversations may share this id."""
        return self.source in WEAK_SOURCES


def identify(
    headers: Texts,
    body: Mapping[str, object],
    settings: ConversationSettings,
    *,
    root_of: Callable[[str], str | None] | None = None,
) -> Identity:
    """The id that a request carries; the source is FINGERPRINT when it carries none. `headers` have
    lower-case names. `root_of` gives the id of the conversation that an earlier response
    (`previous_response_id`) belongs to, or None when it is not known."""
    parent = _parent_of(headers, body)
    # Most requests carry no id: a quick test whether any header could.
    if (
        settings.id_headers
        or not _HEADER_NAMES.isdisjoint(headers)
        or any(name.endswith(_SUFFIX) for name in headers)
    ):
        configured = (HeaderSource(name=name) for name in settings.id_headers)
        for header in (EXPLICIT_HEADER, *configured, *HEADER_SOURCES):
            if found := header.find(headers):
                name, value, started_by = found
                parent = parent or started_by
                if parent == value:
                    parent = None
                return Identity(source=f"header:{name}", value=value, parent=parent)
    # Most requests have none of these fields: one set comparison instead of one look-up per source.
    for source in () if _BODY_KEYS.isdisjoint(body) else BODY_SOURCES:
        given = source.find(body)
        if given is not None and source.through_root:
            if root_of is not None:
                given = root_of(given)
            else:
                given = None
        if given is not None:
            if parent == given:
                parent = None
            return Identity(source=f"body:{source.name}", value=given, parent=parent)
    return Identity(source=FINGERPRINT, parent=parent)


def _parent_of(headers: Texts, body: Mapping[str, object]) -> str | None:
    """The id of the conversation that started this one, in a header or field with such a name."""
    for name in headers:
        if "parent" in name and _PARENT_NAME.search(name) and (value := clean_id(headers[name])):
            return value
    metadata = body.get("metadata")
    for name, given in metadata.items() if isinstance(metadata, dict) else ():
        if "parent" in name and _PARENT_NAME.search(name):
            return clean_id(given)
    return None


_HEADER_NAMES = frozenset(
    source.name for source in (EXPLICIT_HEADER, *HEADER_SOURCES) if isinstance(source, HeaderSource)
)
_BODY_KEYS = frozenset(source.name.partition(".")[0] for source in BODY_SOURCES)
