"""Gateway keys: who may call the gateway, as which tenant, and with which rights. Without this
feature every caller is the same tenant, and a config or a database that has keys is refused."""
