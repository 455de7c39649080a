"""Outcomes by workload and model, from which the learned routing policy chooses."""

from gateway.backends import Stores
from gateway.values import FieldDict


async def read_routing(stores: Stores, tenant: str | None) -> FieldDict | None:
    """Returns the outcomes as the store has them now, those that changed last first; None if it
    keeps no workloads. Raises: StoreError."""
    store = stores.workloads
    if store is None:
        return None
    own = [rate for rate in await store.rates() if tenant in (None, rate.tenant)]
    return {"workloads": own}
