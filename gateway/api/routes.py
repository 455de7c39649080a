"""Every operation of the control plane, and the routes to them."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from starlette.routing import Route

from gateway.api import (
    alerts,
    attribution,
    budgets,
    control,
    conversations,
    distiller,
    events,
    experiments,
    health_summary,
    lessons,
    patterns,
    routing,
    runs,
)
from gateway.api.document import document_operation
from gateway.api.operations import Operation, Resource
from gateway.auth.access import Gate
from gateway.auth.authenticator import Authenticator
from gateway.runtime import Runtime

_MODULES = (
    *(conversations, runs, patterns, experiments, health_summary, alerts, events),
    *(budgets, control, attribution, lessons, distiller, routing),
)


def operations() -> tuple[Operation[Any], ...]:
    """Every operation; those of one path are adjacent."""
    listed = tuple(operation for module in _MODULES for operation in module.OPERATIONS)
    return (*listed, document_operation(listed))


def api_routes(runtime: Runtime, auth: Authenticator) -> list[Route]:
    """The routes of the control plane, each path with all its methods."""
    gate = Gate(auth)
    return [
        Route(_pattern(path), Resource(runtime, gate, tuple(group)))
        for path, group in groupby(operations(), key=lambda operation: operation.path)
    ]


def _pattern(path: str) -> str:
    # The ids of patterns and experiments are free text, slashes included.
    return re.sub(r"\{(pattern_id|experiment_id)\}", r"{\1:path}", path)
