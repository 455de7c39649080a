"""How a final answer of the gateway's own begins, by which it is known in a history."""

from __future__ import annotations

from typing import Final

OWN_ANSWER: Final = "Stopped by the gateway: "
