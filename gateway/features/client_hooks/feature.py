"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

# `gateway hooks`: holds back calls and reports alarms inside Claude Code and Codex.
FEATURE = Feature(
    needs=("history",),
    settings={"client_hooks": "settings:ClientHookSettings"},
    commands={"hooks": "command:add_parser"},
)
