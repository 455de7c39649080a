"""Parameters: what is read, what is refused, and that nothing is ignored."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.params import Parameters, RunFilters, Text, read_parameters
from gateway.api.runs import RunListParameters, TraceParameters
from gateway.errors import BadRequest
from gateway.stores.filters import run_filter


def read(**values: str) -> dict[str, object]:
    return dict(read_parameters(RunListParameters, urlencode(values).encode()))


def test_an_absent_parameter_has_its_default() -> None:
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
        ("count", "yes"),
        ("agent", "x" * 1001),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str) -> None:
    """The error names the parameter."""
    with pytest.raises(BadRequest) as refused:
        read(**{name: text})
    assert refused.value.param == name


def test_an_unknown_filter_is_refused() -> None:
    """A misspelt name is an error that lists the known ones; ignored, it would select all runs."""
    with pytest.raises(BadRequest, match="failure_type") as refused:
        read(failuretype="loop")
    assert refused.value.param == "failuretype"


def test_a_parameter_given_twice_is_refused() -> None:
    """Which of the two is meant cannot be known."""
    with pytest.raises(BadRequest, match="twice"):
        read_parameters(RunListParameters, b"agent=a&agent=b")


def test_very_many_parameters_are_refused() -> None:
    """Before they are looked at."""
    with pytest.raises(BadRequest):
        read_parameters(RunListParameters, b"&".join(b"a=1" for _ in range(1000)))


@given(st.dictionaries(st.sampled_from(list(RunListParameters.model_fields)), st.text(max_size=20)))
def test_any_values_are_read_or_refused(values: dict[str, str]) -> None:
    """No value breaks the reader, and every accepted query makes a filter."""
    try:
        found = dict(read_parameters(RunListParameters, urlencode(values).encode()))
    except BadRequest:
        return
    run_filter(found, None)


class One(Parameters):
    """A single text."""

    a: Text | None = None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(query: bytes) -> None:
    """No query string breaks the reader."""
    try:
        read_parameters(One, query)
    except BadRequest:
        return


def test_empty_texts_admit_all() -> None:
    """A form that leaves a field empty asks for everything."""
    found = read_parameters(RunFilters, b"agent=&task=")
    assert run_filter(dict(found), "t") == run_filter({}, "t")


@pytest.mark.parametrize(
    ("words", "name"), [("no-alarm", "low"), ("at-risk", "warn"), ("in-trouble", "danger")]
)
def test_a_severity_has_its_words_and_its_name_of_earlier_versions(words: str, name: str) -> None:
    """Both select the same runs; a form shows the words."""
    for severity in (words, name):
        found = read(severity=severity)
        assert found["severity"] == words
        assert run_filter(found, None).severity == name


def test_the_query_cannot_set_what_the_path_or_a_header_says() -> None:
    """A parameter has one place; in another it is unknown."""
    path = {"run_id": "r"}
    assert read_parameters(TraceParameters, b"limit=2", path).run_id == "r"
    with pytest.raises(BadRequest) as refused:
        read_parameters(TraceParameters, b"run_id=other", path)
    assert refused.value.param == "run_id"


def test_an_error_names_the_key_in_words() -> None:
    """The message starts with the parameter, and gives the limit it exceeds."""
    with pytest.raises(BadRequest, match=r"^limit: should be less than or equal to 1000$"):
        read(limit="1001")
