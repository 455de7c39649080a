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
from gateway.upstream.litellm_lane.transport import SHORTEST_SECRET, ProviderCall, current_call
from gateway.upstream.native import NativeLane
from gateway.upstream.providers import keys_of_others, split_model

# These describe the provider's bytes, and the client gets other ones.
_OF_THE_OTHER_BODY = frozenset(
    {b"content-length", b"content-type", b"content-encoding", b"etag", b"last-modified"}
    | {b"accept-ranges", b"vary", b"set-cookie", b"alt-svc", b"date", b"server", b"via"}
)
_SECRET_PARAMS = ("key", "secret", "token", "password", "credentials")


class LiteLLMLane:
    """Calls providers through `litellm.acompletion`, over the native lane's connections.

    LiteLLM is imported by `start()` or by the first call, in a thread.
    """

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
        """Import LiteLLM now, so that the first call does not wait for it.

        Raises:
            ImportError: it is not installed.
        """
        self._sdk = await asyncio.to_thread(sdk.load)

    async def send(
        self, target: Target, body: Mapping[str, Any], headers: RawHeaders, dialect: Dialect = CHAT
    ) -> LaneResponse:
        """One call; the answer streams when the body says so, and then its first event is there.

        Raises:
            UpstreamFailure: whatever went wrong, in OpenAI's error shape; the dialect may be one in
                which LiteLLM cannot be asked.
        """
        if dialect.litellm is None:
            raise UpstreamFailure(
                f"the upstream of {target.name!r} does not speak {dialect.name}",
                status=404,
                type="invalid_request_error",
                code="not_found",
            )
        call = ProviderCall(
            native=self._native,
            secrets=_secrets(target.params),
            base_host=_base_host(target.params),
        )
        token = current_call.set(call)
        limit = asyncio.timeout(_limit_s(target.params, streaming=bool(body.get("stream"))))
        try:
            if self._sdk is None:
                await self.start()
            async with limit:
                if dialect.litellm.function == "acompletion":
                    return await self._complete(target, body, headers, call)
                return await self._translate(target, body, headers, call, dialect)
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

    async def _complete(
        self, target: Target, body: Mapping[str, Any], headers: RawHeaders, call: ProviderCall
    ) -> LaneResponse:
        assert self._sdk is not None
        model = _model(target)
        provider, name = self._sdk.split(model, target.params)
        call.provider, call.withheld = provider, keys_of_others(provider, target.params, os.environ)
        speaks_openai = self._sdk.speaks_openai(provider)
        old_form = request.is_legacy(body) and not speaks_openai
        prepared = request.prepare(
            request.modernised(body) if old_form else body,
            target.params,
            provider=provider,
            supported=self._sdk.supported(provider, name),
            speaks_openai=speaks_openai,
        )
        streaming = bool(body.get("stream"))
        call.end_marks = request.end_marks(provider, name) if streaming else ()
        if not prepared.kwargs.get("api_key"):
            _add_key(prepared.kwargs, target, headers, CHAT)
        result = await self._sdk.acompletion(
            **prepared.kwargs,
            **self._controls(target, model, headers, streaming),
            litellm_logging_obj=self._sdk.call_log(
                model, prepared.kwargs["messages"], stream=streaming
            ),
        )
        passed = _passed_on(call, prepared.dropped)
        if not streaming:
            completion = chunks.completion(result.model_dump(), model=name)
            return answers.CompleteAnswer(
                request.as_legacy(completion) if old_form else completion, passed, call.nested
            )
        answer = answers.StreamedAnswer(
            result,
            call,
            chunks.ChunkStream(
                id=f"chatcmpl-{uuid.uuid4().hex}", created=int(time.time()), model=name
            ),
            headers=passed,
            include_usage=request.wants_usage(body),
            legacy=old_form,
        )
        await answer.prime()
        return answer

    async def _translate(
        self,
        target: Target,
        body: Mapping[str, Any],
        headers: RawHeaders,
        call: ProviderCall,
        dialect: Dialect,
    ) -> LaneResponse:
        """A call in a dialect other than chat, by LiteLLM's function for it."""
        assert self._sdk is not None
        assert dialect.litellm is not None
        model, streaming = _model(target), bool(body.get("stream"))
        call.translated = True
        provider, name = self._sdk.split(model, target.params)
        call.provider, call.withheld = provider, keys_of_others(provider, target.params, os.environ)
        kwargs, dropped = request.translated_arguments(target, body, dialect.litellm)
        asked = request.asked_as(target, provider, model, name, dialect.litellm)
        if asked != model:
            kwargs["api_base"] = str(target.api_base)
            kwargs.pop("custom_llm_provider", None)
        if not kwargs.get("api_key"):
            _add_key(kwargs, target, headers, dialect)
        if streaming:
            openai = self._sdk.speaks_openai(provider)
            call.end_marks = request.translated_end_marks(provider, name, speaks_openai=openai)
        controls = self._controls(target, asked, headers, streaming)
        controls.pop("stream_options", None)
        result = await self._sdk.in_dialect[dialect.name](
            **kwargs,
            **controls,
            litellm_logging_obj=self._sdk.call_log(asked, [], stream=streaming),
        )
        passed = _passed_on(call, dropped)
        if not streaming:
            whole = answers.plain(result)
            if not answers.is_answer(whole):
                raise ValueError("an answer without content")
            return answers.CompleteAnswer(whole, passed, call.nested)
        answer = answers.TranslatedStream(result.__aiter__(), call, passed)
        await answer.prime()
        return answer

    def _controls(
        self, target: Target, model: str, headers: RawHeaders, streaming: bool
    ) -> dict[str, Any]:
        """The controls that the gateway sets: retries, limits and usage are its own."""
        controls: dict[str, Any] = {
            "model": model,
            "stream": streaming,
            "timeout": self._timeouts.first_byte_s or None,
            "max_retries": 0,
            "num_retries": 0,
            "drop_params": True,
            # Tools of type `mcp` are the provider's to run; the handler is 15 MB and 0.6 s to load.
            "_skip_mcp_handler": True,
            "extra_headers": request.extra_headers(target.params, headers, self._headers),
        }
        if streaming:
            controls["stream_options"] = {"include_usage": True}
        return controls


def _add_key(kwargs: dict[str, Any], target: Target, headers: RawHeaders, dialect: Dialect) -> None:
    """Add the key of the target, or the client's; with neither LiteLLM looks for the provider's
    own variable."""
    key = credentials.operator_key(target) or credentials.client_key(headers, target, dialect.api)
    if key is not None:
        kwargs["api_key"] = key


def _model(target: Target) -> str:
    """The model as LiteLLM names it: `provider:name` is `provider/name`."""
    model = str(target.params["model"])
    provider, name = split_model(model)
    return f"{provider}/{name}" if provider else model


def _base_host(params: Mapping[str, Any]) -> str:
    base = params.get("api_base") or params.get("base_url")
    return httpx.URL(str(base)).host if base else ""


def _limit_s(params: Mapping[str, Any], *, streaming: bool) -> float | None:
    """LiteLLM's own limit of a deployment, in seconds; up to the first event for a stream."""
    value = params.get("stream_timeout") if streaming else None
    value = params.get("timeout") if value is None else value
    return float(value) if value else None


def _secrets(params: Mapping[str, Any]) -> set[str]:
    return {
        value
        for name, value in params.items()
        if isinstance(value, str)
        and len(value) >= SHORTEST_SECRET
        and any(part in name for part in _SECRET_PARAMS)
    }


def _passed_on(call: ProviderCall, dropped: tuple[str, ...]) -> RawHeaders:
    """The provider's headers that still say something about the answer, and what was left out."""
    passed = end_to_end(call.headers, _OF_THE_OTHER_BODY)
    if dropped:
        passed.append((b"x-gateway-dropped-params", ",".join(dropped).encode("ascii", "replace")))
    return passed
