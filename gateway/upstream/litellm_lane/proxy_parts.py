"""Stand-ins for two modules of LiteLLM's proxy that its Messages streams import.

They write the proxy's records of a stream. Their import needs a web framework that LiteLLM does not
install by itself; without them every streamed Messages answer of a translated Anthropic, Bedrock or
Vertex AI deployment fails. The lane keeps records of its own.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import AsyncIterator
from typing import Any

_PACKAGE = "litellm.proxy.pass_through_endpoints"


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


def install() -> None:
    """Put the stand-ins where LiteLLM imports them from, unless the real ones are there."""
    importlib.import_module(_PACKAGE)
    for name, part in (
        ("success_handler", PassThroughEndpointLogging),
        ("streaming_handler", PassThroughStreamingHandler),
    ):
        module = types.ModuleType(f"{_PACKAGE}.{name}", __doc__)
        setattr(module, part.__name__, part)
        sys.modules.setdefault(module.__name__, module)
