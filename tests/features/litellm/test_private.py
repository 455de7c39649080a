"""The parts of LiteLLM that the gateway uses without LiteLLM documenting them, one test each.

A new version of LiteLLM may change any of them. Each assertion names the file of the gateway that
relies on the part, so that a failure after an upgrade says where to look.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.features.litellm import errors, request, sdk
from gateway.features.litellm.transport import CallTransport
from steering_gateway_testing import Reply, ScriptedUpstream
from tests.features.litellm.lane import CLAUDE, KEY

pytestmark = pytest.mark.usefixtures("litellm_clients")

LANE = "gateway/features/litellm/lane.py"
ROOM = "gateway/features/litellm"
SDK = f"{ROOM}/sdk.py"
SWITCH = "use_chat_completions_api"


def look_at(file: str, part: str) -> str:
    """The message of an assertion about a part of LiteLLM that `file` relies on."""
    return f"LiteLLM changed {part}: look at {file}"


@pytest.fixture(scope="module")
def loaded() -> sdk.Sdk:
    """The lane's own view of LiteLLM."""
    return sdk.load()


@pytest.fixture(scope="module")
def litellm(loaded: sdk.Sdk) -> Any:
    """The package itself, as the lane has set it up."""
    return sys.modules["litellm"]


def part(name: str) -> Any:
    """A module of LiteLLM."""
    return importlib.import_module(f"litellm.{name}")


async def ask(loaded: sdk.Sdk, upstream: ScriptedUpstream, **fields: Any) -> Any:
    """One chat completion of LiteLLM's own, without the lane around it."""
    asked = [{"role": "user", "content": "hi"}]
    log = loaded.call_log(CLAUDE, asked, stream=bool(fields.get("stream")))
    call = {"model": CLAUDE, "messages": asked, "api_key": KEY, "api_base": upstream.url}
    return await loaded.acompletion(**{**call, "litellm_logging_obj": log, **fields})


@pytest.mark.slow
def test_variables_keep_the_import_off_the_network(tmp_path: Path) -> None:
    """No connection, no `.env` of the working directory, nothing printed."""
    (tmp_path / ".env").write_text("FOUND_BY_LITELLM=1\n")
    program = """
import gc, json, os, socket, sys
gc.disable()  # a fifth of the time of the import
asked = []
def refuse(*address):
    asked.append(str(address))
    raise OSError("no network")
socket.getaddrinfo = refuse
import structlog
from gateway.features.litellm import sdk
with structlog.testing.capture_logs():
    sdk.load()
print(json.dumps({"asked": asked, "read": "FOUND_BY_LITELLM" in os.environ}))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LITELLM_")}
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    message = look_at(SDK, "a variable that keeps its import local and quiet")
    assert json.loads(done.stdout) == {"asked": [], "read": False}, message
    assert done.stderr == "", message


def test_table_of_beta_headers_is_loaded_from_the_package(loaded: sdk.Sdk) -> None:
    """The private function that the lane calls early, off the event loop, gives the table."""
    manager = part("anthropic_beta_headers_manager")
    assert manager._load_beta_headers_config(), look_at(SDK, "_load_beta_headers_config")
    assert manager._BETA_HEADERS_CONFIG, look_at(SDK, "where the beta headers are kept")


def test_loggers_have_the_names_that_are_silenced(litellm: Any) -> None:
    """All three, and none of them prints."""
    logs = part("_logging")
    loggers = (logs.verbose_logger, logs.verbose_router_logger, logs.verbose_proxy_logger)
    assert {log.name for log in loggers} == set(sdk._LOGGERS), look_at(SDK, "a logger's name")
    assert not any(log.handlers for log in loggers), look_at(SDK, "when it adds log handlers")


@pytest.mark.parametrize(
    "name",
    [
        "suppress_debug_info",
        "turn_off_message_logging",
        "num_retries",
        "drop_params",
        "disable_token_counter",
    ],
)
def test_switches_exist(litellm: Any, name: str) -> None:
    """Each module variable that the lane sets is one that LiteLLM sets first."""
    found = re.search(rf"^{name}\b[^=\n]* = ", inspect.getsource(litellm), re.MULTILINE)
    assert found, look_at(SDK, f"the switch {name}")


def test_token_counter_is_off(litellm: Any) -> None:
    """It would run a tokeniser on the event loop."""
    counted = litellm.token_counter(model="gpt-4o", text="several words to count")
    assert counted == 0, look_at(SDK, "disable_token_counter")


def test_tokeniser_is_replaced(litellm: Any) -> None:
    """The function that builds it is where the lane replaces it, and is looked up there."""
    assert litellm.main._get_encoding is sdk._NoTokeniser, look_at(SDK, "main._get_encoding")
    used = "_get_encoding" in inspect.getsource(litellm.main)
    assert used, look_at(SDK, "who calls main._get_encoding")


def test_second_copy_of_the_price_list_is_not_parsed(litellm: Any) -> None:
    """Anthropic's adapter asks for it at the first call, by the name that the lane replaces."""
    bundled = litellm.utils.get_bundled_model_cost_map
    assert bundled() is litellm.model_cost, look_at(SDK, "utils.get_bundled_model_cost_map")
    source = inspect.getsource(part("llms.anthropic.common_utils"))
    imported = "from litellm.utils import get_bundled_model_cost_map" in source
    assert imported, look_at(SDK, "who calls get_bundled_model_cost_map")


def test_http_clients_get_the_lanes_transport(loaded: sdk.Sdk) -> None:
    """Every asynchronous client made after the import sends through `CallTransport`."""
    handler = part("llms.custom_httpx.http_handler").AsyncHTTPHandler()
    transport = handler.client._transport
    assert isinstance(transport, CallTransport), look_at(SDK, "create_async_transport")


def test_log_of_a_call_overrides_methods_that_exist(loaded: sdk.Sdk) -> None:
    """A method that LiteLLM has renamed would do its work again."""
    base = part("litellm_core_utils.litellm_logging").Logging
    quiet = type(loaded.call_log(CLAUDE, [], stream=False))
    overridden = [name for name in vars(quiet) if not name.startswith("__")]
    assert issubclass(quiet, base), look_at(SDK, "Logging")
    assert overridden, look_at(SDK, "Logging")
    missing = [name for name in overridden if not hasattr(base, name)]
    assert missing == [], look_at(SDK, "the methods of Logging")


async def test_log_of_a_call_can_be_given(loaded: sdk.Sdk, upstream: ScriptedUpstream) -> None:
    """`litellm_logging_obj` is the log that LiteLLM uses, in place of one it makes."""
    log, used = loaded.call_log(CLAUDE, [], stream=False), []
    log.pre_call = lambda *args, **kwargs: used.append("pre_call")
    upstream.script(Reply("hello"))
    await ask(loaded, upstream, litellm_logging_obj=log)
    assert used == ["pre_call"], look_at(SDK, "the argument litellm_logging_obj")


def test_models_of_an_answer_can_be_built_empty(litellm: Any) -> None:
    """The lane builds one of each before the first call."""
    types = part("types.utils")
    for model in (types.ModelResponse, types.ModelResponseStream):
        assert "choices" in model().model_dump(), look_at(SDK, model.__name__)


def test_a_name_is_split_into_four(litellm: Any) -> None:
    """(model, provider, key, base), by these keyword arguments."""
    found = litellm.get_llm_provider(model=CLAUDE, custom_llm_provider=None, api_base=None)
    assert len(found) == 4, look_at(SDK, "get_llm_provider")
    assert found[:2] == ("claude-sonnet-4-5", "anthropic"), look_at(SDK, "get_llm_provider")


def test_providers_that_speak_openai_are_listed(litellm: Any) -> None:
    """By name, those whose wire is their own not among them."""
    listed = litellm.openai_compatible_providers
    assert "groq" in listed, look_at(SDK, "openai_compatible_providers")
    assert "anthropic" not in listed, look_at(SDK, "openai_compatible_providers")


def test_parameters_that_can_be_translated_are_listed(loaded: sdk.Sdk) -> None:
    """In OpenAI's names."""
    listed = loaded.supported("anthropic", "claude-sonnet-4-5") or ()
    assert {"temperature", "tools"} <= set(listed), look_at(SDK, "get_supported_openai_params")


async def test_a_stream_gives_its_adapter(loaded: sdk.Sdk, upstream: ScriptedUpstream) -> None:
    """Past the wrapper: an asynchronous iterator."""
    upstream.script(Reply("hello"))
    stream = await ask(loaded, upstream, stream=True)
    for name in ("completion_stream", "received_finish_reason", "chunk_creator", "fetch_stream"):
        assert hasattr(stream, name), look_at(LANE, f"CustomStreamWrapper.{name}")
    if stream.completion_stream is None:
        await stream.fetch_stream()
    adapter = stream.completion_stream
    assert hasattr(adapter, "__aiter__"), look_at(LANE, "the adapter below the wrapper")
    kinds = {type(chunk).__name__ async for chunk in adapter}
    assert kinds, look_at(LANE, "what an adapter gives")
    assert kinds <= {"dict", "ModelResponseStream"}, look_at(LANE, "what an adapter gives")


def test_generic_chunks_have_the_fields_that_are_read(litellm: Any) -> None:
    """The other kind of chunk that adapters give."""
    fields = set(part("types.utils").GenericStreamingChunk.__annotations__)
    read = {"text", "tool_use", "finish_reason", "usage", "provider_specific_fields"}
    assert read <= fields, look_at(f"{ROOM}/chunks.py", "GenericStreamingChunk")


def test_thinking_is_where_it_is_read(litellm: Any) -> None:
    """Beside the content, and doubled among the provider's fields."""
    block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    fields = {"reasoning_content": "hm", "thinking_blocks": [block]}
    types = part("types.utils")
    for model in (types.Delta, types.Message):
        dumped = model(content="a", **fields).model_dump()
        assert {key: dumped[key] for key in fields} == fields, look_at(
            f"{ROOM}/chunks.py", model.__name__
        )


def test_signature_of_a_call_is_marked_in_its_id(litellm: Any) -> None:
    """The mark that is cut off for other providers than Gemini."""
    mark = part("litellm_core_utils.prompt_templates.factory").THOUGHT_SIGNATURE_SEPARATOR
    assert mark == request._SIGNATURE_MARK, look_at(f"{ROOM}/request.py", "the mark")


def test_errors_begin_with_the_class_that_is_cut_off(litellm: Any) -> None:
    """Status and message are attributes; the text begins with the name of the class."""
    error = litellm.BadRequestError("too odd", model="m", llm_provider="anthropic")
    where = look_at(f"{ROOM}/errors.py", "the form of its errors")
    assert error.status_code == 400, where
    assert str(error.message) != "too odd", where
    assert errors._LITELLM_PREFIX.sub("", str(error.message)) == "too odd", where


@pytest.mark.parametrize(
    ("dialect", "model", "fields", "by"),
    [
        ("responses", "openai/m", {"input": "hi", SWITCH: True}, SWITCH),
        (
            "messages",
            "hosted_vllm/m",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10},
            "hosted_vllm",
        ),
    ],
)
async def test_other_dialects_are_asked_as_chat_completions(
    loaded: sdk.Sdk, upstream: ScriptedUpstream, dialect: str, model: str, fields: Any, by: str
) -> None:
    """By the switch that the lane sets for an upstream without Responses; messages by the name of
    the provider under which the lane asks an `openai` deployment."""
    upstream.script(Reply("hello"))
    log = loaded.call_log(model, [], stream=False)
    ask = loaded.in_dialect[dialect]
    await ask(
        model=model, api_key=KEY, api_base=upstream.base_url, litellm_logging_obj=log, **fields
    )
    paths = [call.path for call in upstream.requests]
    assert paths == ["/v1/chat/completions"], look_at(f"{ROOM}/answers.py and request.py", by)


async def test_streamed_messages_need_no_proxy(
    loaded: sdk.Sdk, litellm: Any, upstream: ScriptedUpstream
) -> None:
    """What the stand-ins replace is all that LiteLLM asks of its proxy, to the end of a stream."""
    upstream.default = Reply("One two three.")
    stream = await litellm.anthropic_messages(
        model=CLAUDE,
        api_base=upstream.url,
        api_key=KEY,
        max_tokens=9,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
    )
    received = b"".join([chunk async for chunk in stream])
    assert b"message_stop" in received, look_at(SDK, "what its Messages streams import")


async def test_tools_of_type_mcp_are_left_to_the_provider(
    loaded: sdk.Sdk, upstream: ScriptedUpstream
) -> None:
    """With the private switch LiteLLM does not run them, and they reach the provider."""
    tool = {"type": "mcp", "server_label": "s", "server_url": "litellm_proxy/mcp"}
    upstream.script(Reply("hello"))
    await ask(
        loaded,
        upstream,
        model="openai/m",
        api_base=upstream.base_url,
        tools=[tool],
        _skip_mcp_handler=True,
    )
    [call] = upstream.requests
    assert call.json["tools"] == [tool], look_at(LANE, "_skip_mcp_handler")


async def test_embeddings_have_index_and_vector(litellm: Any, upstream: ScriptedUpstream) -> None:
    """Each item of the answer is read by key."""
    answer = await litellm.aembedding(
        model="openai/e", input=["hi"], api_key=KEY, api_base=upstream.base_url
    )
    [item] = answer.data
    assert item["index"] == 0, look_at("gateway/features/litellm/embedder.py", "embeddings")
    assert item["embedding"], look_at("gateway/features/litellm/embedder.py", "embeddings")
