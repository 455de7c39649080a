"""Settings of guidance: what is out of range is refused by its name; labels of what is given."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.guidance_choice import Item
from gateway.core.guidance_settings import EtraceSettings, InjectionSettings
from gateway.core.pattern import PatternMatch, Tier
from tests.steering.guidance.builders import e2

AT_LEAST: dict[str, int] = {
    **dict.fromkeys(("e1_steps", "e2_steps"), 1),
    **dict.fromkeys(("e1_top_k", "e1_per_run", "e1_lookback_steps", "e2_top_k"), 0),
    **dict.fromkeys(("e2_per_type", "e3_max", "e3_max_tokens"), 0),
}
INJECTION: dict[str, int] = {"monitor_cap": 0, "max_field_chars": 200, "max_block_chars": 1_000}
IN_UNIT = ("e1_composite", "e1_gate", "e2_gate", "e2_margin", "recall_threshold")


@pytest.mark.parametrize(
    ("settings", "name", "least"),
    [
        *((EtraceSettings, name, least) for name, least in AT_LEAST.items()),
        *((InjectionSettings, name, least) for name, least in INJECTION.items()),
    ],
)
def test_a_number_below_the_least_is_refused(settings: Any, name: str, least: int) -> None:
    """The least itself is taken."""
    assert getattr(settings(**{name: least}), name) == least
    with pytest.raises(ValueError, match=rf"^{name}: {least - 1} is below {least}$"):
        settings(**{name: least - 1})


@pytest.mark.parametrize(
    ("settings", "name"),
    [*((EtraceSettings, name) for name in IN_UNIT), (InjectionSettings, "monitor_composite")],
)
def test_a_similarity_or_composite_is_in_the_unit_interval(settings: Any, name: str) -> None:
    """Both ends are taken."""
    for value in (0.0, 1.0):
        assert getattr(settings(**{name: value}), name) == value
    for value in (-0.01, 1.01):
        with pytest.raises(
            ValueError, match=rf"^{name}: expected a number in \[0, 1\], got {value}$"
        ):
            settings(**{name: value})


def test_steps_between_texts_are_those_of_known_states() -> None:
    """A state that is not named keeps its default; INIT counts as NORMAL."""
    found = InjectionSettings(cooldown_steps={"SLOW": 0})
    assert found.cooldown("SLOW") == 0
    assert (
        found.cooldown("INIT") == found.cooldown("NORMAL") == InjectionSettings().cooldown("NORMAL")
    )
    with pytest.raises(ValueError, match="'LATE' is not one of"):
        InjectionSettings(cooldown_steps={"LATE": 1})
    with pytest.raises(ValueError, match="SLOW is below 0"):
        InjectionSettings(cooldown_steps={"SLOW": -1})


def test_what_is_given_has_a_label() -> None:
    """The tier and pattern, the failure that a text answers, or who gave it."""
    pattern = e2()
    match = PatternMatch(pattern=pattern, similarity=0.9)
    assert Item(text="t", tier=Tier.E2, match=match).label == f"e2:{pattern.pattern_id}"
    assert Item(text="t", failure_type="loop").label == "monitor:loop"
    assert Item(text="t", source="skip").label == "skip"
