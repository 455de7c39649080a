"""Features: capabilities in folders of their own, each of which may be deleted.

A folder has everything that is its own: settings, tables, routes, pages, commands and texts, and
`feature.py`, its row of the table of hooks (`gateway/hooks.py`). A feature imports the rest of the
gateway, which imports no feature; of another feature what that one offers in the tuple `OFFERS` of
its `__init__.py`, as `module:name`, and only where a hook asks or the other one is there."""

import gateway.config  # first, because the tree of settings reads those of the features
