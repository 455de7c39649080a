"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    needs=("history",),
    parts={
        "lesson_rules": "settings:lesson_rules",
        "start": "worker:start",
        "operations": "api:OPERATIONS",
        "pages": "pages:PAGES",
        "step_notes": "pages:step_notes",
    },
    settings={"learning": "settings:LearningSettings", "reader": "settings:ReaderSettings"},
    commands={"learn": "command:add_parser", "forget": "forget:add_parser"},
)
