"""The dashboard: server-rendered pages over the same stores as the control plane.

One module per page, `charts` for all drawings. May import the control plane
(`api`), `reporting`, the store protocols and `text`.
"""
