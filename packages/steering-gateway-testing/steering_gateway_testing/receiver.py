"""A receiver of alerts on a real port."""

from __future__ import annotations

import threading
from typing import Any

import orjson

from steering_gateway_testing.loopback import OneAnswer, an_answer


class Receiver(OneAnswer):
    """Keeps every message that it answers in time; with `status`, after `hold` is set."""

    def __init__(self) -> None:
        self.status = 200
        self.messages: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Semaphore(0)
        self.hold = threading.Event()
        self.hold.set()
        self.waits_for_us = False  # whether who sends is still there when `hold` is set
        super().__init__(self._keep)

    def _keep(self, head: bytes, body: bytes) -> bytes:
        self.arrived.release()
        held = not self.hold.is_set()
        self.hold.wait(120)
        if self.status < 300 and (self.waits_for_us or not held):
            self.bodies.append(body)
            self.messages.append(orjson.loads(body))
            lines = head.decode().split("\r\n")[1:-2]
            pairs = (line.partition(":") for line in lines)
            self.headers.append({name.lower(): value.strip() for name, _, value in pairs})
        return an_answer(status=self.status)

    @property
    def url(self) -> str:
        """With something in it that nobody is to see."""
        return f"{super().url}/hook/T0PSECRET?token=T0PSECRET"

    def titles(self) -> list[str]:
        """Of every alert that has arrived, in webhook form."""
        return [alert["title"] for message in self.messages for alert in message["alerts"]]

    def close(self) -> None:
        """Stop listening."""
        self.hold.set()
        super().close()


def alerting(receiver: Receiver, **more: Any) -> dict[str, Any]:
    """The section `alerts` of a config: to the receiver, at once."""
    sinks = [{"name": "ops", "url": receiver.url}]
    return {"sinks": sinks, "check_interval_s": 0.1, "group_wait_s": 0, "retry_s": 0.1, **more}
