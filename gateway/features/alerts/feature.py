"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    settings={"alerts": "settings:AlertSettings"},
    store="store:AlertStore",
    metrics="metrics:AlertMetrics",
    start="watch:start",
    operations="api:OPERATIONS",
    now_part="page:now_part",
    commands={"alerts": "commands:add_alerts"},
)
