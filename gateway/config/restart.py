"""Settings that a reload of the config does not change."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from gateway.config.settings import Settings

_AT_START: Final = (
    *("server.host", "server.port", "server.workers", "server.drain_s"),
    *("server.max_concurrent_requests", "server.max_pipelined_requests", "server.keep_alive_s"),
    *("server.max_head_kb", "server.max_head_fields", "server.max_head_s"),
    *("steering.max_conversations_in_memory", "steering.max_transcripts_in_memory"),
    *("steering.max_transcript_memory_mb", "steering.max_prefix_memory_mb"),
    *("storage", "embedding", "logging", "observability"),
)
"""Sections and keys that are read once, when the gateway starts."""


def changes_at_restart(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and take effect at the next start only."""
    return [key for key in _AT_START if attrgetter(key)(old) != attrgetter(key)(new)]
