"""Parameters: what is read, what is refused, and that nothing is passed over."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.filters import PAGING, RUN_FILTERS, run_filter
from gateway.api.params import Param, read_query
from gateway.errors import BadRequest

ALL = (*RUN_FILTERS, *PAGING)


def read(**values: str) -> dict[str, object]:
    return read_query(ALL, urlencode(values).encode())


def test_what_is_not_given_has_its_default() -> None:
    """Filters are off, the page is the first of fifty, newest first."""
    values = read()
    assert (values["limit"], values["sort"], values["order"]) == (50, "started_at", "desc")
    assert values["agent"] is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1760000000.5", 1760000000.5),
        ("2025-10-09T08:53:20Z", 1760000000.0),
        ("2025-10-09T10:53:20+02:00", 1760000000.0),
        ("2025-10-09T08:53:20", 1760000000.0),
        ("2025-10-09", 1759968000.0),
        ("2016-12-31T23:59:60z", 1483228799.0),
    ],
)
def test_times_are_seconds_or_dates(text: str, seconds: float) -> None:
    """UTC where no zone is named."""
    assert read(since=text)["since"] == seconds


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("limit", "0"),
        ("limit", "1001"),
        ("limit", "ten"),
        ("limit", "1_0"),
        ("limit", "٣"),
        ("since", "yesterday"),
        ("since", "nan"),
        ("since", "-1"),
        ("since", "1e300"),
        ("state", "slow"),
        ("outcome", "won"),
        ("order", "up"),
        ("agent", "x" * 1001),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str) -> None:
    """The error names the parameter."""
    with pytest.raises(BadRequest) as refused:
        read(**{name: text})
    assert refused.value.param == name


def test_an_unknown_filter_is_no_filter_of_everything() -> None:
    """A misspelt name is an error that lists the right ones."""
    with pytest.raises(BadRequest, match="failure_type") as refused:
        read(failuretype="loop")
    assert refused.value.param == "failuretype"


def test_a_parameter_given_twice_is_refused() -> None:
    """Which of the two was meant cannot be known."""
    with pytest.raises(BadRequest, match="twice"):
        read_query(ALL, b"agent=a&agent=b")


def test_very_many_parameters_are_refused() -> None:
    """Before they are looked at."""
    with pytest.raises(BadRequest):
        read_query(ALL, b"&".join(b"a=1" for _ in range(1000)))


@given(st.dictionaries(st.sampled_from([p.name for p in ALL]), st.text(max_size=20)))
def test_any_values_are_read_or_refused(values: dict[str, str]) -> None:
    """No value whatever breaks the reader, and what is read makes a filter."""
    try:
        found = read_query(ALL, urlencode(values).encode())
    except BadRequest:
        return
    run_filter(found, None)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(query: bytes) -> None:
    """Neither does any query."""
    try:
        read_query((Param(name="a", description="."),), query)
    except BadRequest:
        return


def test_empty_texts_admit_all() -> None:
    """A form that leaves a field empty asks for everything."""
    assert run_filter(read_query(RUN_FILTERS, b"agent=&task="), "t") == run_filter({}, "t")
