"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    parts={
        "store": "store:KeyStore",
        "keys": "keyring:KeyRing",
        "key_budgets": "keyring:stored_budgets",
        "rights": "rights:RightsOfKeys",
        "lost": "settings:lost",
        "start": "keyring:start",
        "operations": "api:OPERATIONS",
        "pages": "page:PAGES",
    },
    adds={"auth": "settings:KeySettings"},
    commands={"keys": "commands:add_keys"},
)
