"""Sends one message to one receiver. What went wrong is told without the address."""

from __future__ import annotations

import time
from collections.abc import Sequence

import aiohttp

from gateway import __version__
from gateway.alerts.messages import SIGNATURE_HEADER, message, signature
from gateway.config.alerts import AlertSettings, AlertSink
from gateway.stores.alerts import AlertRecord

_READ_BYTES = 2048


class AlertSender:
    """Sends messages over connections of its own. Made on the event loop that uses it."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, sink: AlertSink, alerts: Sequence[AlertRecord], settings: AlertSettings
    ) -> str:
        """Why `sink` did not take `alerts`; empty when it did. Takes `timeout_s` at most."""
        body = message(sink, alerts, settings.base_url)
        headers = {"content-type": "application/json", "user-agent": f"gateway/{__version__}"}
        if sink.secret is not None:
            headers[SIGNATURE_HEADER] = signature(sink.secret, body, int(time.time()))
        timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
        try:
            async with self._open().post(
                str(sink.url), data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                await answer.content.read(_READ_BYTES)
                return "" if 200 <= answer.status < 300 else f"status {answer.status}"
        except TimeoutError:
            return f"no answer within {settings.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Not its text: it may quote the address, which may hold a secret.
            return f"not reached ({type(error).__name__})"

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The environment's proxy counts, as for providers.
            self._session = aiohttp.ClientSession(trust_env=True)
        return self._session
