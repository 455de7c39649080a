"""The lane that translates for upstreams which do not speak the client's dialect."""

from collections.abc import Mapping
from typing import Any

from gateway.config import TimeoutSettings
from gateway.dialects import Dialect
from gateway.errors import UpstreamFailure
from gateway.hooks import given
from gateway.upstream.base import LaneResponse
from gateway.upstream.deployments import Target
from gateway.upstream.litellm_package import WITHOUT_LITELLM, can_translate
from gateway.upstream.native import NativeLane
from gateway.values import Texts
from gateway.wire.headers import RawHeaders


class TranslatingLane:
    """Calls an upstream in its own dialect, and answers in the client's. This one is that of a
    gateway that cannot translate."""

    async def start(self) -> None:
        """Load what the first call needs. Raises: ImportError: it is not installed."""

    async def send(
        self, target: Target, body: Mapping[str, Any], headers: RawHeaders, dialect: Dialect
    ) -> LaneResponse:
        """One call; the answer streams when the body says so, and then its first event is there.
        Raises: UpstreamFailure, in OpenAI's form."""
        message = f"the provider needs a package that is not installed: {WITHOUT_LITELLM}"
        raise UpstreamFailure(message, status=500, type="server_error", code=None)


def translating_lane(
    native: NativeLane, timeouts: TimeoutSettings, headers: Texts
) -> TranslatingLane:
    """LiteLLM's lane over the connections of `native`; `headers` go with every call."""
    if not can_translate():
        return TranslatingLane()
    (lane,) = given("lane")
    made: TranslatingLane = lane(native, timeouts, headers=headers)
    return made
