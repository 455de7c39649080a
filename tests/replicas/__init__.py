"""Several gateway processes on one PostgreSQL database, behind a balancer; some are killed."""
