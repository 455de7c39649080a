"""Where a conversation id is found, in which order, and what does not count as one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.headers import identity_label
from gateway.steering.identity import (
    ID_SOURCES,
    ConversationSettings,
    Identity,
    MatchKind,
    child_id,
    conversation_id,
    identify,
    read_request,
    signature,
)

UUID = "7d4d7f3c-0b51-4c0c-9a55-1f8f6a3c2b10"
PLAIN = ConversationSettings()


def found(
    headers: dict[str, str] | None = None, settings: ConversationSettings = PLAIN, **body: Any
) -> tuple[str, str | None]:
    identity = identify(headers or {}, body, settings)
    return identity.source, identity.value


# Design, section 5, items 1 to 6, in their order.
ORDER = [
    "x-conversation-id",
    "x-claude-code-session-id",
    "x-codex-turn-metadata",
    "thread-id",
    "session-id",
    "session_id",
    "conversation_id",
    "x-opencode-session",
    "agent-session-id",
    "goose-session-id",
    "x-kilocode-taskid",
    "x-zoo-session-id",
    "x-qwen-code-session-id",
    "x-client-session-id",
    "x-interaction-id",
    "x-openwebui-chat-id",
    "x-litellm-session-id",
    "helicone-session-id",
    "x-bf-session-id",
    "x-switchyard-session-id",
    "x-session-id",
    "x-session-affinity",
    "x-thread-id",
    "x-acme-session-id",
]
BODY_ORDER = [
    "session_id",
    "conversation",
    "metadata.session_id",
    "metadata.conversation_id",
    "metadata.thread_id",
    "metadata.chat_id",
    "metadata.user_id",
    "previous_response_id",
    "prompt_cache_key",
]


def a_value(name: str) -> str:
    if name == "x-codex-turn-metadata":
        return json.dumps({"thread_id": "v", "turn_id": "changes"})
    if name == "metadata.user_id":
        return json.dumps({"session_id": "v"})
    return "v"


def test_the_first_source_wins() -> None:
    """With an id in every source, the order is that of the design."""
    headers = {name: a_value(name) for name in ORDER}
    body: dict[str, Any] = {"metadata": {}}
    for name in BODY_ORDER:
        *inner, key = name.split(".")
        (body["metadata"] if inner else body)[key] = a_value(name)
    for name in ORDER:
        assert found(headers, **body) == (f"header:{name}", "v")
        del headers[name]
    for name in BODY_ORDER:
        identity = identify({}, body, PLAIN, root_of=lambda id: id)
        assert (identity.source, identity.value) == (f"body:{name}", "v")
        *inner, key = name.split(".")
        del (body["metadata"] if inner else body)[key]
    assert found({}, **body) == ("fingerprint", None)


def test_the_table_names_every_source() -> None:
    """The table has the header sources, one pattern, and the body sources."""
    names = [getattr(source, "name", "x-*-session-id") for source in ID_SOURCES]
    assert names == [*ORDER[:-1], "x-*-session-id", *BODY_ORDER]


def test_configured_headers_come_second() -> None:
    """A configured header wins over all but `x-conversation-id`; letter case is ignored."""
    settings = ConversationSettings(id_headers=("X-Ticket", "x-job"))
    headers = {"thread-id": "t", "x-job": "j", "x-ticket": "k"}
    assert found(headers, settings) == ("header:x-ticket", "k")
    assert found({**headers, "x-ticket": "null"}, settings) == ("header:x-job", "j")
    assert found({**headers, "x-conversation-id": "c"}, settings)[1] == "c"


@pytest.mark.parametrize(
    ("headers", "body", "value", "parent"),
    [
        ({"x-claude-code-session-id": "s"}, {}, "s", None),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, {}, "s/a", "s"),
        ({"x-codex-turn-metadata": '{"session_id":"s","thread_id":"s"}'}, {}, "s", None),
        ({"x-codex-turn-metadata": '{"session_id":"s","thread_id":"t"}'}, {}, "t", "s"),
        (
            {"x-codex-turn-metadata": '{"session_id":"s","thread_id":"t","parent_thread_id":"p"}'},
            {},
            "t",
            "p",
        ),
        ({"session_id": "t", "x-codex-parent-thread-id": "s"}, {}, "t", "s"),
        ({"x-session-id": "t", "x-parent-session-id": "s"}, {}, "t", "s"),
        ({"x-parent-session-id": "s"}, {}, None, "s"),
        ({"x-session-id": "t", "x-parent-session-id": "null"}, {}, "t", None),
        ({"x-session-id": "t", "x-parent-session-id": "t"}, {}, "t", None),
        ({}, {"metadata": {"session_id": "t", "parent_session_id": "s"}}, "t", "s"),
        ({"traceparent": "00-1-2-01"}, {"metadata": {"parent": "s"}}, None, None),
    ],
)
def test_the_id_of_the_parent(
    headers: dict[str, str], body: dict[str, Any], value: str | None, parent: str | None
) -> None:
    """A sub-agent's parent is named by a header or field of its own, or by the session's id."""
    identity = identify(headers, body, PLAIN)
    assert (identity.value, identity.parent) == (value, parent)


@pytest.mark.parametrize(
    "name",
    [
        "user",
        "safety_identifier",
        "traceparent",
        "authorization",
        "x-api-key",
        "x-forwarded-for",
        "x-request-id",
        "x-codex-window-id",
        "x-stainless-retry-count",
    ],
)
def test_what_never_names_a_conversation(name: str) -> None:
    """Ids of persons, keys, addresses, traces and single requests are not used."""
    body: dict[str, Any] = {name: "v"}
    assert found({name: "v"}, **body) == ("fingerprint", None)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "  ",
        "null",
        "NULL",
        "undefined",
        "None",
        "{{session_id}}",
        "run-{{ id }}",
        "${SESSION_ID}",
        "$SESSION_ID",
        "<session-id>",
        "{conversation_id}",
        "%s",
        "run-%s",
        "%(session)s",
        "%d",
        "a b",
        "a\tb",
        "a\u200bb",
        "x" * 256,
    ],
)
def test_values_that_are_not_ids(value: str) -> None:
    """Placeholders, unfilled templates, blanks and over-long values count as absent."""
    assert found({"x-conversation-id": value, "x-session-id": "real"}) == (
        "header:x-session-id",
        "real",
    )
    assert found(session_id=value) == ("fingerprint", None)


@pytest.mark.parametrize("value", ["1", "x" * 255, UUID, "a/b:c=d", "%d0%b0", "100%", "Ж-1", "a{b"])
def test_values_that_are_ids(value: str) -> None:
    """1 to 255 visible characters of any kind are an id; white space around them is cut."""
    assert found({"x-conversation-id": f" {value} "}) == ("header:x-conversation-id", value)


@pytest.mark.parametrize("value", [True, 1.5, [], {}, ["v"], {"other": "v"}])
def test_body_values_of_another_type_are_absent(value: Any) -> None:
    """Only text and whole numbers are ids in a body."""
    assert found(session_id=value) == ("fingerprint", None)
    assert found(metadata=value) == ("fingerprint", None)


def test_a_whole_number_in_the_body_is_an_id() -> None:
    """A number has the same id as its decimal text."""
    assert found(metadata={"chat_id": 17}) == ("body:metadata.chat_id", "17")


def test_claude_code_agents_are_distinguished() -> None:
    """The session id is joined with the id of the agent when there is one."""
    session = {"x-claude-code-session-id": UUID}
    name = "header:x-claude-code-session-id"
    assert found(session) == (name, UUID)
    assert found({**session, "x-claude-code-agent-id": "a1"}) == (name, f"{UUID}/a1")
    assert found({**session, "x-claude-code-agent-id": "undefined"}) == (name, UUID)


def test_codex_metadata_gives_the_thread() -> None:
    """Of the turn metadata only the thread id counts; it is read although the header is long."""
    turns = [
        json.dumps({"session_id": "s", "thread_id": "th", "turn_id": str(n), "pad": "x" * 300})
        for n in range(2)
    ]
    name = "x-codex-turn-metadata"
    assert {found({name: turn}) for turn in turns} == {(f"header:{name}", "th")}
    assert found({name: '{"turn_id": "1"}', "session_id": "s"}) == ("header:session_id", "s")
    for broken in ("{", "[]", '"th"', "[" * 100_000):
        assert found({name: broken}) == ("fingerprint", None)


@pytest.mark.parametrize(
    ("user", "session"),
    [
        (json.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID}), UUID),
        ({"session_id": "s"}, "s"),
        (f"user_{'ab' * 32}_account_{UUID}_session_s-1", "s-1"),
        (f"user_{'ab' * 32}_account__session_{UUID}", UUID),
        ("alice", None),
        ("alice@example.com", None),
        (json.dumps({"user": "alice"}), None),
        ("17", None),
    ],
)
def test_a_user_id_counts_when_it_contains_a_session(user: Any, session: str | None) -> None:
    """`metadata.user_id` gives the session id that it contains, and is never an id itself."""
    expected = ("body:metadata.user_id", session) if session else ("fingerprint", None)
    assert found(metadata={"user_id": user}) == expected


def test_a_conversation_object_has_an_id() -> None:
    """The field `conversation` of the Responses API is a text or an object with an id."""
    assert found(conversation="conv_1") == found(conversation={"id": "conv_1"})
    assert found(conversation={"id": None}) == ("fingerprint", None)


def test_a_previous_response_leads_to_its_root() -> None:
    """An earlier response gives the recorded id of its conversation, if it is known."""
    body = {"previous_response_id": "resp_2", "prompt_cache_key": "k"}
    roots = {"resp_2": "root"}
    assert identify({}, body, PLAIN, root_of=roots.get) == Identity(
        source="body:previous_response_id", value="root"
    )
    assert identify({}, body, PLAIN, root_of=dict[str, str]().get).source == "body:prompt_cache_key"
    assert identify({}, body, PLAIN).source == "body:prompt_cache_key"


def test_a_cache_key_is_a_weak_id() -> None:
    """A prompt cache key may be shared by several conversations; other ids are not."""
    assert Identity(source="body:prompt_cache_key", value="k").weak
    assert not Identity(source="header:x-session-id", value="k").weak


# Clients of the recorded table: what they send, and where the id is found.
CLIENTS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "openai and most frameworks": (
        {"x-stainless-lang": "python", "user-agent": "OpenAI/Python"},
        {"model": "m"},
        "fingerprint",
    ),
    "Responses with state": ({}, {"previous_response_id": "resp"}, "body:previous_response_id"),
    "Codex over HTTP": (
        {
            "x-codex-turn-metadata": '{"session_id": "s", "thread_id": "t", "turn_id": "9"}',
            "x-codex-window-id": "w",
        },
        {"prompt_cache_key": "t"},
        "header:x-codex-turn-metadata",
    ),
    "Claude Code": (
        {"x-claude-code-session-id": UUID},
        {"metadata": {"user_id": json.dumps({"session_id": UUID})}},
        "header:x-claude-code-session-id",
    ),
    "opencode": (
        {"x-session-id": "ses_1", "x-session-affinity": "ses_1"},
        {},
        "header:x-session-id",
    ),
    "pi on responses": (
        {"session_id": "s", "x-client-request-id": "s"},
        {"prompt_cache_key": "s"},
        "header:session_id",
    ),
}


@pytest.mark.parametrize(("headers", "body", "source"), CLIENTS.values(), ids=CLIENTS.keys())
def test_recorded_clients(headers: dict[str, str], body: dict[str, Any], source: str) -> None:
    """The id of each recorded client is found."""
    assert identify(headers, body, PLAIN, root_of=lambda id: id).source == source


@given(
    st.dictionaries(st.sampled_from([*ORDER, "x-y-session-id"]), st.text(), max_size=4),
    st.dictionaries(
        st.sampled_from(["metadata", *BODY_ORDER]),
        st.text() | st.integers() | st.dictionaries(st.text(), st.text(), max_size=2) | st.none(),
        max_size=4,
    ),
)
def test_identify_never_raises(headers: dict[str, str], body: dict[str, Any]) -> None:
    """For any input, the value is None or visible characters."""
    identity = identify(headers, body, PLAIN)
    assert (identity.value is None) == (identity.source == "fingerprint")
    if identity.value is not None:
        assert identity.value.isprintable()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"id_headers": ("x a",)}, "id_headers: 'x a' is not a valid header name"),
        ({"id_headers": ("Authorization",)}, "id_headers: 'Authorization' does not name"),
        ({"run_boundary": "sometimes"}, "run_boundary: must be one of settled_answer, "),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], message: str) -> None:
    """A setting that cannot work is refused with its name."""
    with pytest.raises(ValueError, match=re.escape(message)):
        ConversationSettings(**bad)


def test_conversation_ids_are_salted() -> None:
    """An id is short, printable, and different for another tenant, key or nonce."""
    ids = {
        conversation_id("a", "k"),
        conversation_id("b", "k"),
        conversation_id("a", "k", "1"),
        conversation_id("a", "kk"),
        conversation_id("ak", ""),
    }
    assert len(ids) == 5
    assert all(re.fullmatch("c-[a-z2-7]{24}", id) for id in ids)
    assert conversation_id("a", "k") in ids


def test_child_ids_agree_and_do_not_collide() -> None:
    """The same fork of the same parent has the same id, unless that is taken."""
    first = child_id("c-1", b"hash")
    assert first == child_id("c-1", b"hash")
    assert len({first, child_id("c-1", b"other"), child_id("c-2", b"hash")}) == 3
    second = child_id("c-1", b"hash", {first})
    assert second != first
    assert child_id("c-1", b"hash", {first, second}) not in {first, second}


def test_a_signature_ignores_dates_and_counters() -> None:
    """Dates, versions, counts, spacing and letter case may change; the role and tools may not."""
    monday = signature("You code.\nToday is Monday, 3 March 2025. v1.2 cch=a1f", ["ls", "cat"])
    friday = signature("you code. Today is Friday,  14 Nov 2026. v1.3 cch=99b", ["cat", "ls"])
    assert monday == friday
    assert monday != signature("You review. Today is Monday", ["ls", "cat"])
    assert monday != signature("You code. Today is Monday", ["ls"])


def test_a_signature_reads_the_start_only() -> None:
    """Later parts of the system text (listings, diffs) do not matter."""
    role = "You are a careful engineer who fixes bugs. " * 30
    assert signature(role + "M a.py", []) == signature(role + "clean", [])


def test_a_request_is_read_without_raising() -> None:
    """Signature, tools and the retry header are read from the request."""
    body = {"tools": [{"name": "ls"}], "messages": [{"role": "user", "content": "Hi"}]}
    request = read_request({"x-stainless-retry-count": "1"}, body, "t")
    assert request.has_tools
    assert request.client_retry
    for count in ("0", "", "no", "-1"):
        assert not read_request(
            {"x-stainless-retry-count": count}, {"messages": 3}, "t"
        ).client_retry


@pytest.mark.parametrize(
    ("source", "kind", "label"),
    [
        ("header:x-session-id", MatchKind.NEW, "header:x-session-id"),
        ("header:x-session-id", MatchKind.CONTINUE, "header:x-session-id"),
        ("header:x-session-id", MatchKind.COMPACTION, "compaction"),
        ("body:session_id", MatchKind.SIDE, "body:session_id"),
        ("fingerprint", MatchKind.NEW, "new"),
        ("fingerprint", MatchKind.CONTINUE, "prefix"),
        ("fingerprint", MatchKind.RETRY, "retry"),
        ("fingerprint", MatchKind.FORK, "fork"),
    ],
)
def test_labels_name_the_match_or_the_source(source: str, kind: MatchKind, label: str) -> None:
    """Retry, fork and compaction replace the id's source; a fingerprint is `prefix` or `new`."""
    assert identity_label(source, kind) == label
