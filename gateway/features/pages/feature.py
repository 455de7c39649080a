"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    parts={
        "operations": "compare:OPERATIONS",
        "store": "kept_views:ViewStore",
        "routes": "routes:dashboard_routes",
        "pages": "routes:PAGES",
    },
    commands={"dashboard": "command:add_parser"},
)
