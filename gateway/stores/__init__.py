"""Storage of a gateway: the protocols and values of stores, the guard that keeps answers from
waiting for one, and the stores on SQLite and PostgreSQL, which `gateway.backends` opens."""
