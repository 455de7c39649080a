"""Authentication and access: gateway keys and their tenants, the admin key, browser sessions.

May import config, stores, observability and upstream header helpers; knows nothing of endpoints."""
