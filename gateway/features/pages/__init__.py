"""The dashboard: server-rendered pages over the stores; one module per page, `charts` for drawings.

What they change and show, they ask of the control plane (`gateway/api`)."""

OFFERS = (
    "pages:Page",
    "pages:PageRoute",
    "pages:Visit",
    "pages:redirect",
    "patterns:OneParameters",
)
