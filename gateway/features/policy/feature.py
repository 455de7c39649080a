"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(needs=("learning",), commands={"policy": "command:add_parser"})
