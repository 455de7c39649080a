"""Whatever a client writes in headers, bodies and model names: ids stay ids, keys stay at home."""

from __future__ import annotations

import re
from typing import Any

import httpx
import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import DIALECTS
from gateway.errors import BadRequest, UnknownProvider
from gateway.steering.identity import ConversationSettings, identify
from gateway.steering.identity.ids import BODY_SOURCES, HEADER_SOURCES, MAX_ID_CHARACTERS
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.providers import OPENAI_COMPATIBLE
from tests.conversations.driver import Driver
from tests.examples import examples
from tests.upstream.test_providers import settings

ID = re.compile(r"(c-[a-z2-7]{24})?")
HEADERS = sorted({getattr(s, "name", "x-my-session-id") for s in HEADER_SOURCES})
FIELDS = sorted({part for s in BODY_SOURCES for part in s.name.split(".")})

nasty = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", " ", "null", "\x00", "{{id}}", "${ID}", "\u202e", "\ud800", "\U0010ffff"]),
    st.sampled_from(
        ["a" * 255, "a" * 256, "é" * 255, "9" * 5000, "[" * 2000, '{"session_id":' * 99]
    ),
    st.builds(
        "".join, st.lists(st.sampled_from(list('{}[]":,\\/%$<>._-user_session_0')), max_size=60)
    ),
)
value: st.SearchStrategy[Any] = st.recursive(
    nasty | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FIELDS, "id", "type", "role", "content"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
headers = st.dictionaries(
    st.sampled_from([*HEADERS, "x-parent-session-id", "x-a-session-id"]) | st.text(max_size=20),
    nasty,
    max_size=4,
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool", "developer", ""]) | value,
        "content": value,
        "tool_calls": value,
        "tool_call_id": value,
        "type": value,
        "id": value,
        "call_id": value,
    },
)
MODELS = [
    "gpt",
    "openai/x",
    "antropic/x",
    "a/b/c",
    "*/x",
    "claude:",
    ":",
    "/",
    "openrouter/openai/x",
]


@examples(300)
@given(given_headers=headers, body=st.dictionaries(st.sampled_from(FIELDS), value, max_size=4))
def test_an_id_is_sane_or_absent(given_headers: dict[str, str], body: dict[str, Any]) -> None:
    """At most so many visible characters; the same for the same request."""
    found = identify(given_headers, body, ConversationSettings())
    assert found == identify(given_headers, body, ConversationSettings())
    for text in (found.value, found.parent):
        if text is not None:
            assert 1 <= len(text) <= MAX_ID_CHARACTERS
            assert text.isprintable()
            assert not re.search(r"\s", text)


@examples(200)
@given(
    name=st.sampled_from(sorted(DIALECTS)),
    given_headers=headers,
    extra=st.dictionaries(st.sampled_from(FIELDS), value, max_size=3),
    history=st.lists(message | value, max_size=5),
)
def test_every_request_finds_a_conversation(
    name: str, given_headers: dict[str, str], extra: dict[str, Any], history: list[Any]
) -> None:
    """Sent twice, then longer; nothing but a wrong type is refused, and no answer is no id."""
    driver, dialect = Driver(), DIALECTS[name]
    for messages in (history, history, [*history, {"role": "user", "content": "on"}]):
        fields = {**extra, "model": "m", dialect.list_key: messages}
        try:
            raw = orjson.dumps(fields)
            request = dialect.parse(raw, orjson.loads)
        except (BadRequest, TypeError, orjson.JSONEncodeError):
            return  # a lone surrogate, an integer beyond 64 bits
        resolved, found = driver.resolve(request, given_headers)
        assert ID.fullmatch(found.id if found else resolved.match.conversation_id or "")


@examples(200)
@given(model=st.sampled_from(MODELS) | nasty, key=st.sampled_from([None, "sk-default"]))
def test_a_hostile_model_name_sends_no_key_away(model: str, key: str | None) -> None:
    """A name has targets, or is refused; a configured key goes to its own host only."""
    listed = {"model": "mistral/real", "api_key": "sk-mistral"}
    upstream = {"default_upstream": {"api_key": key}} if key else {}
    table = DeploymentTable(settings(listed, **upstream), {"GROQ_API_KEY": "sk-groq"})
    try:
        targets = table.resolve(model)
    except UnknownProvider:
        return
    assert targets
    for target in targets:
        host = target.api_base.host
        if target.api_key == "sk-mistral":
            assert model == "m0"
        if target.api_key == "sk-groq":
            assert host == httpx.URL(str(OPENAI_COMPATIBLE["groq"].api_base)).host
        if target.api_key == "sk-default":
            assert host == "api.openai.com"
        assert table.candidates(model, 0.0, "c-1")[0].api_base == target.api_base
