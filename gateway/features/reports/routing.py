"""Outcomes by workload and model, from which the learned routing policy chooses."""

from gateway.backends import Stores
from gateway.stores.learning import WorkloadRate
from gateway.values import frozen


@frozen
class RoutingReport:
    """Outcomes by workload."""

    workloads: tuple[WorkloadRate, ...]  # those that changed last first


async def read_routing(stores: Stores, tenant: str | None) -> RoutingReport | None:
    """Returns the outcomes as the store has them now; None if it keeps no workloads. Raises:
    StoreError."""
    store = stores.workloads
    if store is None:
        return None
    own = [rate for rate in await store.rates() if tenant in (None, rate.tenant)]
    return RoutingReport(workloads=tuple(own))
