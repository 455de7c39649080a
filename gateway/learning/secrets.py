"""Whether a text holds what looks like a credential; such a text teaches nothing."""

from __future__ import annotations

from gateway.text.secrets import MARK, find_secrets


def has_secret(text: str) -> bool:
    """True where the one detector finds a secret, or has masked one before."""
    return MARK in text or bool(find_secrets(text))
