"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    parts={"operations": "api:OPERATIONS", "pages": "pages:PAGES", "now_part": "pages:now_part"},
    commands={"report": "commands:add_report", "pilot": "commands:add_pilot"},
)
