"""Gateways with a control plane to ask, and agents whose runs it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.hooks import features
from steering_gateway_testing import AppServer
from steering_gateway_testing.patience import DEADLINE_MS

Start = Callable[..., AppServer]

SETTINGS: Mapping[str, Any] = {
    "embedding": {"embedder": "hashing"},
    "steering": {"deadline_ms": DEADLINE_MS},
}

with_pages = pytest.mark.skipif("pages" not in features(), reason="the pages are not there")
"""For a test that looks at a page, too."""

with_budgets = pytest.mark.skipif("budgets" not in features(), reason="budgets are not there")
"""For a test of a gateway that has budgets."""

with_keys = pytest.mark.skipif("keys" not in features(), reason="gateway keys are not there")
"""For a test of a gateway that has keys."""


@pytest.fixture
def start(gateway_server: Start) -> Start:
    """Start a gateway with the settings of these tests, and more."""
    return lambda **more: gateway_server({**SETTINGS, **more})
