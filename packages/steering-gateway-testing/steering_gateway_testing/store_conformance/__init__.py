"""What every store must do, as checks that a store outside this project can run too.

A check is a coroutine function of an empty, open `gateway.backends.Stores`. It raises
AssertionError when the store breaks a promise of `gateway/stores/protocols.py` or
`gateway/stores/patterns.py`. With pytest and pytest-asyncio:

    @pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
    async def test_my_store(check, tmp_path):
        stores = await open_my_store(tmp_path)
        await check(stores)
        await stores.close()

The checks need the packages of the gateway only. Imports allowed: `gateway.stores`,
`gateway.backends`, `gateway.steering`.
"""

from collections.abc import Iterator
from importlib import import_module

from gateway.hooks import features
from steering_gateway_testing.store_conformance.answers import ANSWER_CHECKS
from steering_gateway_testing.store_conformance.attribution import ATTRIBUTION_CHECKS
from steering_gateway_testing.store_conformance.changes import CHANGE_CHECKS
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.controls import CONTROL_CHECKS
from steering_gateway_testing.store_conformance.histories import HISTORY_CHECKS
from steering_gateway_testing.store_conformance.learning import LEARNING_CHECKS
from steering_gateway_testing.store_conformance.monitoring import MONITORING_CHECKS
from steering_gateway_testing.store_conformance.patterns import PATTERN_CHECKS
from steering_gateway_testing.store_conformance.raw import RAW_CHECKS
from steering_gateway_testing.store_conformance.retention import RETENTION_CHECKS
from steering_gateway_testing.store_conformance.run_lists import RUN_LIST_CHECKS
from steering_gateway_testing.store_conformance.runs import RUN_CHECKS
from steering_gateway_testing.store_conformance.searches import SEARCH_CHECKS
from steering_gateway_testing.store_conformance.sessions import SESSION_CHECKS
from steering_gateway_testing.store_conformance.states import STATE_CHECKS
from steering_gateway_testing.store_conformance.workloads import WORKLOAD_CHECKS


def _of_features() -> Iterator[Check]:
    """The checks of the stores of features, each in the module of the same name here."""
    for name, feature in features().items():
        if "store" in feature.parts:
            yield from import_module(f"{__name__}.{name}").CHECKS


ALL_CHECKS: tuple[Check, ...] = (
    *STATE_CHECKS,
    *HISTORY_CHECKS,
    *RUN_CHECKS,
    *RUN_LIST_CHECKS,
    *SESSION_CHECKS,
    *RETENTION_CHECKS,
    *PATTERN_CHECKS,
    *SEARCH_CHECKS,
    *LEARNING_CHECKS,
    *CONTROL_CHECKS,
    *ATTRIBUTION_CHECKS,
    *_of_features(),
    *MONITORING_CHECKS,
    *WORKLOAD_CHECKS,
    *RAW_CHECKS,
    *ANSWER_CHECKS,
    *CHANGE_CHECKS,
)

__all__ = [
    "ALL_CHECKS",
    "ANSWER_CHECKS",
    "ATTRIBUTION_CHECKS",
    "CHANGE_CHECKS",
    "CONTROL_CHECKS",
    "HISTORY_CHECKS",
    "LEARNING_CHECKS",
    "MONITORING_CHECKS",
    "PATTERN_CHECKS",
    "RAW_CHECKS",
    "RETENTION_CHECKS",
    "RUN_CHECKS",
    "RUN_LIST_CHECKS",
    "SEARCH_CHECKS",
    "SESSION_CHECKS",
    "STATE_CHECKS",
    "WORKLOAD_CHECKS",
    "Check",
]
