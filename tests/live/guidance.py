"""Guidance as a provider receives it."""

from __future__ import annotations

from typing import Any

from gateway.core.render import FRAME_OPEN

_ROLES = ("system", "developer", "tool")


def guidance_frames(body: Any) -> list[str]:
    """The gateway's guidance blocks in a chat request, in order."""
    messages = body.get("messages", []) if isinstance(body, dict) else []
    contents = [each.get("content") for each in messages if each.get("role") in _ROLES]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [each])]
    texts = [part.get("text", "") if isinstance(part, dict) else str(part) for part in parts]
    return [frame for text in texts for frame in text.split(FRAME_OPEN)[1:]]
