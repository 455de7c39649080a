"""Which conversation a request belongs to: ids, fingerprint, and what the request does to it."""
