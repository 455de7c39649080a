"""The dashboard: server-rendered pages over the same stores as the control plane.

One module per page, `run_chart` and `small_charts` for what is drawn. May import the control plane
(`api`), `reporting`, the store protocols and `text`.
"""
