"""The dashboard: server-rendered pages over the same stores as the control plane."""
