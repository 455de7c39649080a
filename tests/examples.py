"""How many examples of a property and cases of a table are tried: few in `make check`, many in
`make nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest

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


def by_day(cases: Iterable[Any], count: int) -> list[Any]:
    """All cases of a long table for `parametrize`: `count` of them, evenly spread from the first to
    the last, and the others for `make nightly` alone. A tuple is one value for each name."""
    table = list(cases)
    last = len(table) - 1
    chosen = {round(number * last / max(1, count - 1)) for number in range(count)}
    return [
        case if number in chosen else pytest.param(*_values(case), marks=pytest.mark.nightly)
        for number, case in enumerate(table)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if type(case) is tuple else (case,)
