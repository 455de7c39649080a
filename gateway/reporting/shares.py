"""Shares of the arms in the form `arm:share,arm:share`."""

from __future__ import annotations

from gateway.steering.experiments import ARMS

_MOST = 1e6


def read_shares(text: str) -> dict[str, float]:
    """Shares written as `arm:share,arm:share`. Raises: ValueError for anything else."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        arm, _, share = part.strip().partition(":")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if arm not in ARMS or arm in shares or not 0 <= number <= _MOST:
            raise ValueError(f"shares: {part[:40]!r} is not an arm and its share, such as on:0.5")
        shares[arm] = number
    if not sum(shares.values()) > 0:
        raise ValueError("shares: must add up to more than 0")
    return shares
