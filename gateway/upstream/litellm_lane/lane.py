"""The LiteLLM lane: calls to upstreams that do not speak the dialect of the client."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

import httpx

from gateway.config import TimeoutSettings
from gateway.dialects import CHAT, Dialect
from gateway.errors import UpstreamFailure, UpstreamTimeout
from gateway.upstream import credentials
from gateway.upstream.base import LaneResponse, RawHeaders, end_to_end
from gateway.upstream.deployments import Target
from gateway.upstream.litellm_lane import answers, chunks, errors, request, sdk
from gateway.upstream.litellm_lane.transport import (
    SHORTEST_SECRET,
    Destination,
    ProviderCall,
    current_call,
)
from gateway.upstream.native import NativeLane
from gateway.upstream.providers import keys_of_others, split_model
from gateway.wire.coerce import as_mapping

# These describe the provider's bytes, and the client gets other ones.
_OF_THE_OTHER_BODY = frozenset(
    {b"content-length", b"content-type", b"content-encoding", b"etag", b"last-modified"}
    | {b"accept-ranges", b"vary", b"set-cookie", b"alt-svc", b"date", b"server", b"via"}
)
# Retries are the gateway's own. Tools of type `mcp` are the provider's to run; LiteLLM's handler of
# them is 15 MB and 0.6 s to load.
_FIXED = {"max_retries": 0, "num_retries": 0, "drop_params": True, "_skip_mcp_handler": True}
_SECRET_PARAMS = ("key", "secret", "token", "password", "credentials")


class LiteLLMLane:
    """Calls providers through `litellm.acompletion`, over the native lane's connections. LiteLLM is
    imported by `start()` or by the first call, in a thread."""

    def __init__(
        self,
        native: NativeLane,
        timeouts: TimeoutSettings,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._native = native
        self._timeouts = timeouts
        self._headers = dict(headers or {})
        self._sdk: sdk.Sdk | None = None

    async def start(self) -> None:
        """Import LiteLLM before the first call. Raises: ImportError: it is not installed."""
        self._sdk = await asyncio.to_thread(sdk.load)

    async def send(
        self, target: Target, body: Mapping[str, Any], headers: RawHeaders, dialect: Dialect = CHAT
    ) -> LaneResponse:
        """One call; the answer streams when the body says so, and then its first event is there.
        Raises: UpstreamFailure: in OpenAI's form, also where LiteLLM cannot be asked in the
        dialect."""
        if dialect.litellm is None:
            raise UpstreamFailure(
                f"the upstream of {target.name!r} does not speak {dialect.name}",
                status=404,
                type="invalid_request_error",
                code="not_found",
            )
        params = target.params
        base = params.get("api_base") or params.get("base_url")
        call = ProviderCall(
            send=self._native.send,
            to=Destination(base_host=httpx.URL(str(base)).host if base else ""),
            translated=dialect.litellm.function != "acompletion",
            secrets={
                value
                for name, value in params.items()
                if isinstance(value, str)
                and len(value) >= SHORTEST_SECRET
                and any(part in name for part in _SECRET_PARAMS)
            },
        )
        token = current_call.set(call)
        limit = asyncio.timeout(_limit_s(params, streaming=bool(body.get("stream"))))
        try:
            if self._sdk is None:
                await self.start()
            assert self._sdk is not None
            async with limit:
                return await self._ask(self._sdk, dialect, target, body, headers, call)
        except Exception as exc:
            await call.close()
            if limit.expired():
                raise UpstreamTimeout("no answer within litellm_params.timeout") from exc
            raise errors.failure(exc, call) from exc
        except BaseException:
            await call.close()
            raise
        finally:
            current_call.reset(token)

    async def _ask(
        self,
        loaded: sdk.Sdk,
        dialect: Dialect,
        target: Target,
        body: Mapping[str, Any],
        headers: RawHeaders,
        call: ProviderCall,
    ) -> LaneResponse:
        """A call by LiteLLM's function for the dialect."""
        streaming = bool(body.get("stream"))
        prefix, model = split_model(str(target.params["model"]))
        model = f"{prefix}/{model}" if prefix else model  # as LiteLLM names it
        provider, name = loaded.split(model, target.params)
        call.to.provider = provider
        call.to.withheld = keys_of_others(provider, target.params, os.environ)
        translated = dialect.litellm if call.translated else None
        openai = loaded.speaks_openai(provider)
        legacy = translated is None and not openai and request.is_legacy(body)
        if translated is not None:
            kwargs, dropped = request.translated_arguments(target, body, translated, provider, name)
        else:
            kwargs, dropped = request.prepare(
                request.modernised(body) if legacy else body,
                target.params,
                provider=provider,
                supported=loaded.supported(provider, name),
                speaks_openai=openai,
            )
        if streaming:
            call.end_marks = request.end_marks(
                provider, name, translated=call.translated, speaks_openai=openai
            )
            if not call.translated:
                kwargs["stream_options"] = {"include_usage": True}
        if not kwargs.get("api_key"):
            operators = credentials.operator_key(target)
            key = operators or credentials.client_key(headers, target, dialect.api)
            if key is not None:  # else LiteLLM looks for the provider's own variable
                kwargs["api_key"] = key
        asked = kwargs.setdefault("model", model)
        messages = [] if call.translated else kwargs["messages"]
        kwargs |= _FIXED | {
            "stream": streaming,
            "timeout": self._timeouts.first_byte_s or None,
            "extra_headers": request.extra_headers(target.params, headers, self._headers),
            "litellm_logging_obj": loaded.call_log(asked, messages, stream=streaming),
        }
        result = await loaded.in_dialect[dialect.name](**kwargs)
        return await _answered(result, call, body, dropped, model=name, legacy=legacy)


def _limit_s(params: Mapping[str, Any], *, streaming: bool) -> float | None:
    """LiteLLM's own limit of a deployment, in seconds; up to the first event for a stream."""
    value = params.get("stream_timeout") if streaming else None
    value = params.get("timeout") if value is None else value
    return float(value) if value else None


async def _answered(
    result: Any,
    call: ProviderCall,
    body: Mapping[str, Any],
    dropped: tuple[str, ...],
    *,
    model: str,
    legacy: bool,
) -> LaneResponse:
    """LiteLLM's result as the answer to a request; a stream with its first event."""
    streaming = bool(body.get("stream"))
    headers = end_to_end(call.received.headers, _OF_THE_OTHER_BODY)
    if dropped:
        left_out = ",".join(dropped).encode("ascii", "replace")
        headers.append((b"x-gateway-dropped-params", left_out))
    if streaming and call.translated:
        return await answers.TranslatedStream(result.__aiter__(), call, headers).primed()
    if streaming:
        id, now = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        return await answers.StreamedAnswer(
            result,
            call,
            chunks.ChunkStream(id=id, created=now, model=model),
            headers=headers,
            include_usage=bool(as_mapping(body.get("stream_options")).get("include_usage")),
            legacy=legacy,
        ).primed()
    if call.translated:
        whole = answers.plain(result)
        if not answers.is_answer(whole):
            raise ValueError("an answer without content")
    else:
        whole = chunks.completion(result.model_dump(), model=model)
        whole = request.as_legacy(whole) if legacy else whole
    return answers.CompleteAnswer(whole, headers, call.nested)
