"""The dashboard: server-rendered pages over the stores; one module per page, `charts` for drawings.

May import the control plane (`api`), `reporting`, the store protocols and `text`."""
