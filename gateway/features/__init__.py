"""Features: capabilities in folders of their own, each of which may be deleted.

A folder has everything that is its own: settings, tables, routes, pages, commands and texts, and
`feature.py`, its row of the table of hooks (`gateway/hooks.py`). A feature imports the rest of the
gateway, which imports no feature."""

import gateway.config  # noqa: F401 - first, because the tree of settings reads those of the features
