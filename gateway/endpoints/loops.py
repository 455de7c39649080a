"""Requests that come back to the gateway that sent them."""

from __future__ import annotations

from gateway.errors import LoopDetected
from gateway.upstream.base import RawHeaders
from gateway.upstream.dispatch import has_passed


def refuse_loop(headers: RawHeaders, instance: bytes) -> None:
    """Stop a request that this gateway itself has sent.

    Raises:
        LoopDetected: it carries this gateway's mark.
    """
    if has_passed(headers, instance):
        raise LoopDetected(
            "the request came back to the gateway that sent it: an api_base (or OPENAI_BASE_URL in "
            "the gateway's own environment) points at the gateway itself"
        )
