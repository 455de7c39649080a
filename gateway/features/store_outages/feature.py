"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(parts={"states": "guarded:GuardedStateStore", "erase": "spool_file:erase"})
