"""Values that are cheap to make behave like frozen dataclasses in everything but assignment."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import pkgutil

import pytest

import gateway
from gateway.stores.records import CallRow, StepRow
from gateway.wire.values import dataclass, replace


def test_they_compare_hash_copy_and_inherit_like_frozen_dataclasses() -> None:
    """Equal by their fields, with defaults of their own, in stores, pools and subclasses."""
    first = StepRow(run_id="r", step_index=1, at=0.0, state="FAST")
    later = replace(first, at=1.0)
    assert later == dataclasses.replace(first, at=1.0) != first
    assert pickle.loads(pickle.dumps(later)) == later  # noqa: S301 - our own bytes
    assert first.scores is not StepRow(run_id="r", step_index=1, at=0.0, state="FAST").scores

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Point:
        x: int
        y: int = 2

        def __post_init__(self) -> None:
            assert self.y

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Named(Point):
        name: str = "origin"

    @dataclass(frozen=True, slots=True)
    class Pair:
        left: int
        right: int = 0

    assert Pair(1, right=2) == Pair(1, 2)
    assert {Point(x=1), Point(x=1, y=2)} == {Point(x=1)}
    assert Named(x=1) == Named(x=1, y=2, name="origin")
    assert dataclasses.asdict(replace(Named(x=1), name="here")) == {"x": 1, "y": 2, "name": "here"}
    assert CallRow(request_id="q", model_requested="m", model_asked="m").reasons == ()


def test_a_copy_takes_fields_of_any_name_and_no_others() -> None:
    """Whatever the fields are called; several changes at once, also none."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd:
        kind: str = ""
        value: int = 0
        new: int = 0

    assert replace(Odd(), kind="k", value=1, new=2) == Odd(kind="k", value=1, new=2)
    assert replace(Odd(value=3)) == Odd(value=3)
    with pytest.raises(TypeError, match="other"):
        replace(Odd(), other=1)  # type: ignore[call-arg]


def test_every_module_can_be_imported() -> None:
    """Classes that are made at the first visit of a page, too."""
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
