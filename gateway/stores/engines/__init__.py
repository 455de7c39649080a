"""The engines of `gateway.stores.sql`, each imported when its database is used."""
