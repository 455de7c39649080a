"""How long gateways in tests may take to steer a request."""

from __future__ import annotations

DEADLINE_MS = 60_000
"""For `steering.deadline_ms`, which every gateway of a test gets unless the test is about it.

The deadline is a limit on the processor time of a request, 50 ms where nothing is configured: one
that a slow machine needs longer for would go out unsteered, and a test would see other steps,
states and models than it expects.
"""
