"""Values that every request makes many of cannot be changed by whoever is given one."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest
from msgspec.structs import replace

import gateway
from gateway.stores.records import CallRow, StepRow


def test_a_value_is_compared_by_its_fields_and_cannot_be_changed() -> None:
    """Equal by their fields, each with its own defaults; a copy leaves the first as it was."""
    first = StepRow(run_id="r", step_index=1, at=0.0, state="FAST")
    later = replace(first, at=1.0)
    assert later != first == replace(later, at=0.0)
    assert pickle.loads(pickle.dumps(later)) == later  # noqa: S301 - our own bytes
    assert first.scores is not StepRow(run_id="r", step_index=1, at=0.0, state="FAST").scores
    assert CallRow(request_id="q", model_requested="m", model_asked="m").reasons == ()
    with pytest.raises(AttributeError, match="immutable"):
        first.at = 2.0  # type: ignore[misc]


def test_every_module_can_be_imported() -> None:
    """Classes that are made at the first visit of a page, too."""
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
