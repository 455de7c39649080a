"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    parts={
        "store": "store:AlertStore",
        "metrics": "metrics:AlertMetrics",
        "start": "watch:start",
        "operations": "api:OPERATIONS",
        "now_part": "page:now_part",
    },
    settings={"alerts": "settings:AlertSettings"},
    commands={"alerts": "commands:add_alerts"},
)
