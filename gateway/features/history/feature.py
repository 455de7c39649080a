"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    commands={"history": "command:add_parser"},
    parts={"agent_of": "find:agent_of"},
)
