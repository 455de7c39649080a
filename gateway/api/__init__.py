"""The control plane: `/api/...`, one module per resource."""
