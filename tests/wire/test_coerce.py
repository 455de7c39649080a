"""JSON values of unknown type: the expected type passes, every other one gives the default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.wire.coerce import (
    as_bool,
    as_int,
    as_list,
    as_mapping,
    as_number,
    as_text,
)
from gateway.wire.usage import first_mapping

JSON_VALUES = [None, True, False, 0, 7, -1, 0.0, 1.0, 2.5, "", "7", "text", [], [1], {}, {"a": 1}]


@pytest.mark.parametrize(
    ("read", "accepted"),
    [
        (as_text, ["", "7", "text"]),
        (as_bool, [True, False]),
        (as_int, [0, 7, -1]),
        (as_number, [0, 7, -1, 0.0, 1.0, 2.5]),
    ],
)
def test_a_value_of_another_type_gives_the_default(
    read: Callable[[Any, Any], Any], accepted: list[Any]
) -> None:
    """Exactly the listed values pass, unchanged; a boolean is no number and `1.0` no integer."""
    default = object()
    for value in JSON_VALUES:
        expected = any(value == each and type(value) is type(each) for each in accepted)
        found = read(value, default)
        assert found == value if expected else found is default, value


@pytest.mark.parametrize(
    ("read", "kind"), [(as_mapping, dict), (as_list, list)], ids=["mapping", "list"]
)
def test_what_holds_no_values_is_read_as_empty(read: Callable[[Any], Any], kind: type) -> None:
    """An object or an array passes as it is; anything else is an empty one."""
    for value in JSON_VALUES:
        assert read(value) == (value if isinstance(value, kind) else kind()), value


def test_a_number_is_returned_as_a_float() -> None:
    """An integer becomes a float; one that no float can hold gives the default."""
    assert isinstance(as_number(7, None), float)
    assert as_number(10**400, None) is None


def test_the_first_name_that_holds_an_object_wins() -> None:
    """Names that are absent or hold another type are passed over; without any the result is {}."""
    values = {"a": None, "b": [1], "c": {}, "d": {"x": 1}}
    assert first_mapping(values, "a", "b", "d", "c") == {"x": 1}
    assert first_mapping(values, "a", "b", "missing") == {}
