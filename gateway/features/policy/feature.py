"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(commands={"policy": "command:add_parser"})
