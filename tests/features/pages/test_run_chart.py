"""The chart of a run: what is drawn where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from gateway.features.pages.run_chart import RunChart
from gateway.stores.records import InjectionRow, StepRow
from gateway.text.page import page_templates
from gateway.text.svg import heat, slot_path, stretches
from steering_gateway_testing.store_conformance import records

draw: Any = page_templates().get_template("charts.html").module
"""The macros that draw."""

LINES = {
    "fast": 0.2,
    "slow": 0.6,
    "skip": 0.85,
    "margin": 0.1,
    "fire": 0.6,
    "warn": 0.35,
    "danger": 0.6,
}


def a_chart(steps: Sequence[StepRow], guidance: Sequence[InjectionRow] = ()) -> RunChart:
    by_step: dict[int, list[InjectionRow]] = {}
    for row in guidance:
        by_step.setdefault(row.step_index, []).append(row)
    return RunChart(steps=steps, guidance=by_step, thresholds=LINES)


def all_of(drawing: Markup, tag: str, name: str) -> list[str]:
    """The elements of a class."""
    return re.findall(rf'<{tag}[^>]*class="[^"]*\b{name}\b[^"]*"[^>]*>', drawing)


def number(attribute: str, element_text: str) -> float:
    found = re.search(rf'\b{attribute}="([-0-9.]+)%?"', element_text)
    assert found is not None, element_text
    return float(found[1])


def test_the_curve_goes_through_every_score() -> None:
    """At the middle of its slot, as high as it is; what was not scored is left out."""
    scores = (0.0, 0.5, 1.0)
    steps = [
        records.a_first_step(),
        *(records.a_step(n, difficulty=d) for n, d in enumerate(scores, start=1)),
    ]
    drawn = draw.difficulty_chart(a_chart(steps))
    (path,) = all_of(drawn, "path", "curve")
    places = re.findall(r"[ML]([\d.]+) ([\d.]+)", path)
    assert [float(x) for x, _ in places] == [1.5, 2.5, 3.5]
    heights = [float(y) for _, y in places]
    assert heights == [186, 95, 4]
    dots = [number("cx", dot) for dot in all_of(drawn, "circle", "dot")]
    assert dots == [37.5, 62.5, 87.5]


def test_bands_follow_the_states() -> None:
    """Neighbouring steps of one state share a band; together they fill the width."""
    states = ["INIT", "NORMAL", "NORMAL", "SLOW", "NORMAL"]
    steps = [records.a_step(n, state=state) for n, state in enumerate(states)]
    bands = all_of(draw.difficulty_chart(a_chart(steps)), "rect", "band")
    assert [number("width", band) for band in bands] == [20, 40, 20, 20]
    assert [re.search("band-([A-Z]+)", band)[1] for band in bands] == [  # type: ignore[index]
        "INIT",
        "NORMAL",
        "SLOW",
        "NORMAL",
    ]


def test_guidance_is_flagged_where_it_was_given() -> None:
    """One flag a step, however many pieces; what was not sent looks different."""
    steps = [records.a_step(n) for n in range(4)]
    rows = [
        records.an_injection(1),
        records.an_injection(1, ordinal=1),
        records.an_injection(3, applied=False),
    ]
    drawn = draw.difficulty_chart(a_chart(steps, rows))
    links = all_of(drawn, "a", "marker")
    assert [number("data-step", link) for link in links] == [1, 3]
    assert ["marker-shadow" in link for link in links] == [False, True]
    assert 'href="#step-3"' in links[1]


def test_models_have_different_colours() -> None:
    """A switch of the model is a change of colour; the name can be read."""
    steps = [
        records.a_step(n, call=records.a_chat(model_asked=m))
        for n, m in enumerate(["a", "a", "b<", "a"])
    ]
    chart = a_chart(steps)
    assert chart.models == ["a", "b<"]
    lane = draw.model_lane(chart)
    assert re.findall(r"model-(\d)", lane) == ["0", "1", "0"]
    assert "b&lt;" in lane


@pytest.mark.parametrize(
    ("reading", "level"), [(None, None), (0.0, 0), (0.3, 2), (0.59, 4), (0.6, 5)]
)
def test_what_fires_is_hottest(reading: float | None, level: int | None) -> None:
    """The last level begins at the fire threshold."""
    assert heat(reading, 0.6) == level


def test_tokens_are_stacked_and_costs_added_up() -> None:
    """Cached, other input and output are stacked; the axis shows the most and the sum."""
    steps = [
        records.a_step(n, call=records.a_chat(input_tokens=100 * n, cached_tokens=50))
        for n in (1, 2)
    ]
    chart = a_chart(steps)
    drawn = draw.token_chart(chart)
    assert len(all_of(drawn, "rect", "bar")) == 6
    assert all_of(drawn, "path", "curve-cost")
    assert ">220<" in draw.token_axis(chart)
    assert ">$0.50<" in draw.token_axis(chart)


def test_a_run_without_a_step_can_be_drawn() -> None:
    """Nothing to see is no error."""
    empty = a_chart([])
    for name in ("difficulty_chart", "difficulty_axis", "composite_chart", "model_lane"):
        assert getattr(draw, name)(empty).startswith("<svg")
    for name in ("token_chart", "token_axis", "step_axis"):
        assert getattr(draw, name)(empty).startswith("<svg")


rows = st.builds(
    records.a_step,
    st.integers(0, 10_000),
    state=st.sampled_from(["INIT", "FAST", "NORMAL", "SLOW", "SKIP", "END", "<script>"]),
    difficulty=st.none() | st.floats(0, 1),
    composite=st.none() | st.floats(0, 1),
    scores=st.dictionaries(st.sampled_from(["streak", "hedge"]), st.floats(0, 1)),
    fired=st.just(()) | st.just(("streak",)),
    call=st.none()
    | st.builds(
        records.a_chat,
        model_asked=st.text(max_size=5),
        input_tokens=st.none() | st.integers(0, 10**9),
        cached_tokens=st.none() | st.integers(0, 10**9),
        cost_usd=st.none() | st.floats(0, 1e6),
    ),
)


@given(st.lists(rows, max_size=8))
def test_any_chart_can_be_drawn_and_holds_no_markup(steps: list[StepRow]) -> None:
    """Whatever a run is like, every place is inside the drawing and nothing is left unescaped."""
    chart = a_chart(steps)
    drawings = [
        draw.difficulty_chart(chart),
        draw.composite_chart(chart),
        draw.model_lane(chart),
        draw.monitor_strip(chart, "streak"),
        draw.token_chart(chart),
        draw.token_axis(chart),
        draw.step_axis(chart),
    ]
    for drawn in drawings:
        assert "<script" not in drawn
        places = re.findall(r'\b(?:x|cx)="([-\d.]+)%"', drawn)
        assert all(0 <= float(place) <= 100 for place in places)


@given(st.lists(st.sampled_from("ab"), max_size=30))
def test_stretches_cover_every_step_once(names: list[str]) -> None:
    """Laid end to end they are the steps again."""
    again = [n for _, length, name in stretches(names) for n in [name] * length]
    assert again == names


def test_nothing_known_has_a_path() -> None:
    """Without a value there is no line, and no error."""
    assert slot_path([None, None], 60, 4) == "M0 0"
