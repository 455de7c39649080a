"""LiteLLM itself: imported late, in a thread, and kept quiet.

The import takes seconds and some 150 MB. It reads `.env` files, fetches a price list and a header
table, attaches log handlers that print content, and works out costs and log records for every call:
all of that is switched off. An import that failed leaves submodules in `sys.modules`, with which
every later one fails, too; so they are taken away, and the next call starts from the beginning."""

import asyncio
import datetime
import importlib
import logging
import os
import sys
import time
import types
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, wraps
from threading import Lock, RLock
from typing import Any

from gateway.dialects import DIALECTS
from gateway.dialects.gemini import chat_messages
from gateway.errors import UpstreamUnreachable
from gateway.features.litellm.transport import CallTransport, ProviderCall, current_call
from gateway.observability.logging import get_logger
from gateway.values import Fields

# Package of two modules that LiteLLM's Messages streams import to write records, and that need a
# web framework which LiteLLM does not install. The lane has its own records: stand-ins are enough.
_PROXY_ROUTES = "litellm.proxy.pass_through_endpoints"


class PassThroughEndpointLogging:
    """The proxy's log of a finished call; the lane has its own."""


class PassThroughStreamingHandler:
    """Relays a stream; the proxy would also log it."""

    @staticmethod
    async def chunk_processor(response: Any, **_: Any) -> AsyncIterator[bytes]:
        """The provider's bytes as they arrive."""
        async for chunk in response.aiter_bytes():
            yield chunk

    @staticmethod
    async def route_streaming_logging_to_handler(**_: Any) -> None:
        """Log nothing."""

    @staticmethod
    async def schedule_stream_failure_logging(**_: Any) -> None:
        """Log nothing."""


def install_proxy_parts() -> None:
    """Put the stand-ins where LiteLLM imports them from, unless the real ones are there."""
    importlib.import_module(_PROXY_ROUTES)
    parts = {
        "success_handler": PassThroughEndpointLogging,
        "streaming_handler": PassThroughStreamingHandler,
    }
    for name, part in parts.items():
        module = types.ModuleType(f"{_PROXY_ROUTES}.{name}")
        setattr(module, part.__name__, part)
        sys.modules.setdefault(module.__name__, module)


_PACKAGE = "litellm"

# Without these LiteLLM downloads tables that it also carries.
LOCAL_TABLES = dict.fromkeys(
    ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"), "True"
)
# LiteLLM loads `.env` of the working directory unless it runs in production, and prints requests
# unless only critical messages are logged.
_DEFAULTS = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "CRITICAL"}

_import_lock = RLock()


@contextmanager
def litellm_imported() -> Iterator[Any]:
    """LiteLLM's package; blocks for seconds the first time, and other threads until the body has
    ended. If that fails, all that it imported of LiteLLM is taken out of `sys.modules` again.
    Raises: ImportError: LiteLLM, or something it needs, is not installed."""
    with _import_lock:
        os.environ.update(LOCAL_TABLES)
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        if _PACKAGE not in sys.modules:
            _forget(_own_modules())  # left by a failed import of somebody else's
        before = _own_modules()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield importlib.import_module(_PACKAGE)
        except BaseException:
            _forget(_own_modules() - before)
            raise


def _own_modules() -> set[str]:
    """The names of LiteLLM's modules that are imported, wholly or in part."""
    return {name for name in list(sys.modules) if name.partition(".")[0] == _PACKAGE}


def _forget(names: set[str]) -> None:
    """Take modules out of `sys.modules` and off the packages that hold them."""
    for name in names:
        module = sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        if module is not None and getattr(sys.modules.get(parent), child, None) is module:
            delattr(sys.modules[parent], child)


# What Pydantic says about LiteLLM's own types and calls. Where warnings are errors
# (`PYTHONWARNINGS=error`, pytest) the second broke off every Responses stream of the lane.
_WARNINGS = (
    r"Items? .* the `ReadOnly` qualifier",
    r"Accessing the 'model_\w+' attribute on the instance is deprecated",
)
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_lock = Lock()


class Sdk:
    """The handful of LiteLLM's functions the lane uses."""

    def __init__(self, litellm: Any):
        self._litellm = litellm
        self._quiet_logging = _quiet_logging_class()
        self._split: dict[tuple[str, Any, Any], tuple[str, str]] = {}
        self._supported: dict[tuple[str, str], frozenset[str] | None] = {}
        self.acompletion: Callable[..., Awaitable[Any]] = litellm.acompletion
        self.in_dialect: Mapping[str, Callable[..., Awaitable[Any]]] = {
            name: getattr(litellm, dialect.litellm.function)
            for name, dialect in DIALECTS.items()
            if dialect.litellm is not None
        }

        # Of the functions that do not stream themselves.
        google = importlib.import_module("litellm.google_genai.main")
        # Its own gives all calls of a tool one id, and sends texts before results.
        adapter = importlib.import_module("litellm.google_genai.adapters.transformation")
        adapter.GoogleGenAIAdapter._transform_contents_to_messages = (
            lambda _, contents, system_instruction=None: chat_messages(contents, system_instruction)
        )
        self.streamed: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "gemini": google.agenerate_content_stream
        }

    def split(self, model: str, params: Fields) -> tuple[str, str]:
        """(provider, model at the provider) as LiteLLM reads a name. Raises: Exception: unknown."""
        explicit = params.get("custom_llm_provider")
        base = params.get("api_base") or params.get("base_url")
        found = self._split.get((model, explicit, base))
        if found is None:
            name, provider, _, _ = self._litellm.get_llm_provider(
                model=model, custom_llm_provider=explicit, api_base=base
            )
            found = self._split[model, explicit, base] = (provider, name)
        return found

    def supported(self, provider: str, name: str) -> frozenset[str] | None:
        """The OpenAI parameters LiteLLM can translate for a model; None when it cannot tell."""
        if (provider, name) not in self._supported:
            ask = self._litellm.get_supported_openai_params
            found = None
            with suppress(Exception):  # a provider without a table: no reason to fail
                found = ask(model=name, custom_llm_provider=provider)
            self._supported[provider, name] = frozenset(found) if found else None
        return self._supported[provider, name]

    def speaks_openai(self, provider: str) -> bool:
        """Whether unknown fields of a request may be passed on in `extra_body`."""
        known = self._litellm.openai_compatible_providers
        return provider in ("openai", "azure") or provider in known

    def call_log(self, model: str, messages: Any, *, stream: bool) -> Any:
        """LiteLLM's log of one call, of the kind that does nothing."""
        return self._quiet_logging(
            model=model,
            messages=messages,
            stream=stream,
            call_type="acompletion",
            start_time=datetime.datetime.now(),  # noqa: DTZ005 - subtracted from another naive one
            litellm_call_id="",
            function_id="",
        )


def load() -> Sdk:
    """Import LiteLLM, or give the one already imported; blocks for seconds the first time. Safe to
    call from several threads: the others wait for the first. After a failure the next call tries
    again. Raises: ImportError: LiteLLM, or something it needs, is not installed."""
    with _lock:
        return _load_once()


@cache
def _load_once() -> Sdk:
    log = get_logger("gateway.litellm")
    began = time.monotonic()
    log.info("loading LiteLLM: a few seconds, only once; calls that need it wait")
    with litellm_imported() as litellm:
        from litellm.anthropic_beta_headers_manager import _load_beta_headers_config

        _load_beta_headers_config()
        install_proxy_parts()
        _silence(litellm)
        _route_through_the_lane()
        loaded = Sdk(litellm)
        _rehearse(loaded)
    for said in _WARNINGS:
        warnings.filterwarnings("ignore", message=said)
    log.info("LiteLLM loaded", seconds=round(time.monotonic() - began, 1))
    return loaded


def _silence(litellm: Any) -> None:
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.CRITICAL)
    litellm.suppress_debug_info = litellm.turn_off_message_logging = litellm.drop_params = True
    litellm.num_retries = 0
    # It would run a tokeniser on the event loop to estimate what the provider did not report.
    litellm.disable_token_counter = True
    # Measured with 1.106: the tokeniser 43 MB and 0.2 s, the second copy of the price list 11 MB
    # and 0.25 s, both at the first call and on the event loop. The lane uses neither.
    litellm.main._get_encoding = _NoTokeniser
    litellm.utils.get_bundled_model_cost_map = lambda: litellm.model_cost


class _NoTokeniser:
    """Stands in for a tokeniser: counts nothing, and costs nothing."""

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []


def _rehearse(loaded: Sdk) -> None:
    """Make one call that is not sent, and build the models of an answer. LiteLLM imports and builds
    a third of a second's worth at its first call; here that happens off the event loop."""
    from litellm.types.utils import ModelResponse, ModelResponseStream

    for model in (ModelResponse, ModelResponseStream):
        model().model_dump()
    name = "anthropic/claude-sonnet-4-5"
    messages = [{"role": "user", "content": "hi"}]

    async def unplugged(*_: Any) -> Any:
        raise UpstreamUnreachable("a rehearsal")

    async def call() -> None:
        current_call.set(ProviderCall(send=unplugged))
        await loaded.acompletion(
            model=name,
            messages=messages,
            api_key="rehearsal",
            max_retries=0,
            num_retries=0,
            litellm_logging_obj=loaded.call_log(name, messages, stream=False),
        )

    loaded.supported(*loaded.split(name, {}))
    with suppress(Exception):
        asyncio.run(call())


def _route_through_the_lane() -> None:
    """Give every HTTP client that LiteLLM makes from now on the lane's transport."""
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    make = AsyncHTTPHandler.create_async_transport

    @wraps(make)
    def make_watched(*args: Any, **kwargs: Any) -> CallTransport:
        return CallTransport(make(*args, **kwargs))

    AsyncHTTPHandler.create_async_transport = staticmethod(make_watched)
    AsyncHTTPHandler._create_async_transport = AsyncHTTPHandler.create_async_transport


def _quiet_logging_class() -> Any:
    """LiteLLM's per-call log without its work, which is 2.3 of 4.9 ms of CPU on a small call."""
    from litellm.litellm_core_utils.litellm_logging import Logging

    class QuietLogging(Logging):  # type: ignore[misc]
        def pre_call(self, *_: Any, **__: Any) -> None: ...
        def post_call(self, *_: Any, **__: Any) -> None: ...
        def response_cost_calculator(self, *_: Any, **__: Any) -> None: ...
        def success_handler(self, *_: Any, **__: Any) -> None: ...
        def failure_handler(self, *_: Any, **__: Any) -> None: ...
        def handle_sync_success_callbacks_for_async_calls(self, *_: Any, **__: Any) -> None: ...
        async def async_success_handler(self, *_: Any, **__: Any) -> None: ...
        async def async_failure_handler(self, *_: Any, **__: Any) -> None: ...

        def claim_async_success_log(self) -> bool:
            return False

    return QuietLogging
