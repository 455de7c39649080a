"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

_OPEN = "stores:open_postgres"
FEATURE = Feature(databases={"postgresql": _OPEN, "postgres": _OPEN})
