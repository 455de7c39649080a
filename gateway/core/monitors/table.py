"""The monitors, one row each: everything else that names a monitor is derived from this table.

To add a monitor, write its class in the module of a suite and add its row to `table.json`. Another
package adds a row with an entry point of the group `steering_gateway.monitors`: a mapping with the
fields of `MonitorRow` (`examples/plugin`)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import ValidationError, convert

from gateway.core.plugins import load_class, plugins
from gateway.data_files import read_text
from gateway.values import Texts, Value

SuiteName = Literal["reference", "robust"]
_PACKAGE = "gateway.core.monitors"
_GROUP = "steering_gateway.monitors"


class ProfileWeights(Value, forbid_unknown_fields=True):
    """Weight of a monitor in the composite, in [0, 1], for each built-in kind of task."""

    coding: float  # agents that change files
    pr_review: float  # agents that read a change and comment on it
    qa: float  # agents that answer questions


class MonitorRow(Value, forbid_unknown_fields=True):
    """One monitor, as a row of the table."""

    name: str  # in settings, records and metrics
    failure_type: str  # label of the failure that it detects; several monitors may share one
    # with a weight of 0 it names a failure only if it has been seen, and no random arm draws it
    weights: ProfileWeights
    # its class per suite, as `module:Class` (a leading dot: below this package), imported when the
    # suite is used; a suite without it neither scores nor weighs it
    classes: Mapping[SuiteName, str]
    # what the agent is sent at severity 1, 2, ..., with `{evidence}` where the reason of the
    # reading goes; without texts the monitor is recorded and routes like any other
    texts: tuple[str, ...] = ()
    # suites in which it is a reading in the composite, and raises an alarm only if the setting
    # `alarms` lists it
    reads_in: tuple[SuiteName, ...] = ()


# Source of names, order, failure types and weights: docs/names.md, the six monitors.
_BUILT_IN = msgspec.json.decode(read_text(__package__, "table.json"), type=tuple[MonitorRow, ...])


def _added_rows() -> tuple[MonitorRow, ...]:
    """The rows of other packages. Raises ValueError: an entry point that is no row, or whose name
    is taken."""
    rows = []
    for point in plugins(_GROUP, {row.name for row in _BUILT_IN}):
        try:
            rows.append(convert({**point.load(), "name": point.name}, MonitorRow))
        except (AttributeError, ImportError, TypeError, ValidationError) as error:
            raise ValueError(f"entry point {_GROUP}: {point.name}: {error}") from error
    return tuple(rows)


TABLE: tuple[MonitorRow, ...] = (*_BUILT_IN, *_added_rows())
# Names of the monitors, in the order in which they are scored and shown.
MONITORS: tuple[str, ...] = tuple(row.name for row in TABLE)
# Names of the monitors that raise alarms in suite `robust` unless `monitors.alarms` says other.
ALARMING: tuple[str, ...] = tuple(row.name for row in TABLE if "robust" not in row.reads_in)
# Failure type by monitor.
FAILURE_TYPES: Texts = MappingProxyType({row.name: row.failure_type for row in TABLE})
# The failure types, each once.
FAILURE_LABELS: tuple[str, ...] = tuple(dict.fromkeys(FAILURE_TYPES.values()))
DEFAULT_PROFILE = "coding"
# Weight of each monitor by built-in profile.
PROFILES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        profile: MappingProxyType({row.name: getattr(row.weights, profile) for row in TABLE})
        for profile in ProfileWeights.__struct_fields__
    }
)


SUITES = {"reference": ".reference:ReferenceSuite", "robust": ".robust:RobustSuite"}


def monitor_classes(suite: SuiteName) -> Mapping[str, Callable[..., Any]]:
    """The class of each monitor that `suite` has, in the order of the table; imports them."""
    return {
        row.name: load_class(_PACKAGE, row.classes[suite]) for row in TABLE if suite in row.classes
    }
