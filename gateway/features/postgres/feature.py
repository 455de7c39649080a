"""The row of this feature in the table of hooks; `storage.url` names its stores."""

from gateway.hooks import Feature

FEATURE = Feature()
