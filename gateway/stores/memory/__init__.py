"""The stores without a disk: the same answers as the others, gone with the process."""

from gateway.stores.memory.runs import MemoryRunStore
from gateway.stores.memory.states import MemoryStateStore
from gateway.stores.memory.tables import Tables

__all__ = ["MemoryRunStore", "MemoryStateStore", "Tables"]
