"""One PostgreSQL database for several gateways; `database` is the entrance."""
