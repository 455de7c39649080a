"""The LiteLLM lane as the dispatcher sees it: built at the first request that needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config import TimeoutSettings
from gateway.upstream.base import LaneResponse, RawHeaders
from gateway.upstream.deployments import Target


class ForeignProviders:
    """Every provider whose wire is not the client's."""

    def __init__(self, timeouts: TimeoutSettings) -> None:
        self._timeouts = timeouts
        self._lane: Any = None

    async def warm(self) -> None:
        """Import LiteLLM now, in a thread, so that the first request does not wait for it."""
        await self._ready().start()

    async def send(
        self, target: Target, body: Mapping[str, Any], headers: RawHeaders
    ) -> LaneResponse:
        """One call; streams when the body says so. Raises UpstreamFailure."""
        from gateway.upstream.litellm_lane import LiteLLMTarget

        where = LiteLLMTarget(params=target.params, name=target.name)
        response: LaneResponse
        if body.get("stream") is True:
            response = await self._ready().stream(where, body)
        else:
            response = await self._ready().complete(where, body)
        return response

    async def aclose(self) -> None:
        """Close the lane's connections."""
        if self._lane is not None:
            await self._lane.aclose()

    def _ready(self) -> Any:
        from gateway.upstream.litellm_lane import LiteLLMLane

        if self._lane is None:
            self._lane = LiteLLMLane(self._timeouts)
        return self._lane
