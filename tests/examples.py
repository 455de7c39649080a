"""How many examples of a property are tried: few in `make check`, many in `make nightly`."""

from __future__ import annotations

from typing import Any

import hypothesis

FEW, MANY = 20, 100
"""Of a property that names no number. `make check` draws new examples each time it runs."""

_LEAST = 10

# Tests run side by side on loaded machines: how long an example takes says nothing about it.
_ANYWHERE: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}


def load_profiles() -> None:
    """Make `make check`'s number the default; `--hypothesis-profile=nightly` chooses the other."""
    hypothesis.settings.register_profile("suite", max_examples=FEW, **_ANYWHERE)
    hypothesis.settings.register_profile("nightly", max_examples=MANY, **_ANYWHERE)
    hypothesis.settings.load_profile("suite")


def examples(many: int, **more: Any) -> hypothesis.settings:
    """Settings of a property that `make nightly` tries `many` times, `make check` on its share.

    more: further settings of hypothesis.
    """
    share = hypothesis.settings().max_examples / MANY
    return hypothesis.settings(max_examples=max(_LEAST, round(many * share)), **more)
