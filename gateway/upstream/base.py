"""The answer that both lanes return, its headers, and the time limits on reading it."""

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import isnan
from typing import Protocol

from gateway.values import FieldDict
from gateway.wire.headers import RawHeaders, header


class LaneResponse(Protocol):
    """An upstream's answer. Iterate once for the body; always `aclose()`."""

    status: int  # of HTTP, or the one that the lane makes of an error
    # end-to-end headers, names in lower case, repeated ones kept, content-length when known
    headers: RawHeaders
    # token usage, where the lane knows it (LiteLLM); None where it is in the body
    usage: FieldDict | None

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises: UpstreamFailure: it broke off or stalled."""
        ...

    async def aclose(self) -> None:
        """Release the connection; ends the upstream call if it is still running."""
        ...


def retry_after_s(headers: RawHeaders) -> float | None:
    """Seconds the upstream asks to wait, as a number or as a date; None when it does not say."""
    for name, unit in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        value = header(headers, name).decode("latin-1")
        with suppress(ValueError, OverflowError):
            seconds = float(value) / unit
            if isnan(seconds):
                return None
            return max(0.0, seconds)
        with suppress(ValueError, TypeError, OverflowError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None
