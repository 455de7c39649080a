"""Rows of the run log as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.stores import codec
from gateway.stores.postgres.text import read_json, read_text
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import RunRecord

_NEWEST_CALL = 0
_TAGS = len(codec.STOP_COLUMNS) + codec.RUN_COLUMNS.index("tags")


def run_of(row: Sequence[Any]) -> RunRecord:
    """From `codec.RUN`."""
    values = list(map(read_text, row))
    values[_NEWEST_CALL] = row[_NEWEST_CALL]
    values[_TAGS], values[-1] = read_json(row[_TAGS]), read_json(row[-1])
    return codec.run_of(values)


def step_of(run_id: str, row: Sequence[Any]) -> StepRow:
    """From `codec.STEP_COLUMNS`, whose last three are JSON."""
    *columns, readings, call, content = row
    return codec.step_of(run_id, [*map(read_text, columns), readings, call, content])


def injection_of(run_id: str, row: Sequence[Any]) -> InjectionRow:
    """From `codec.INJECTIONS`."""
    return codec.injection_of(run_id, list(map(read_text, row)))
