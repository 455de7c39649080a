"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    parts={"models": "price_list:list_of"}, commands={"prices": "commands:add_prices"}
)
