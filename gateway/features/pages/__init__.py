"""The dashboard: server-rendered pages over the stores; a module per page, `charts` what is drawn.

What they change and show, they ask of the control plane (`gateway/api`)."""

OFFERS = (
    "pages:Page",
    "pages:PageRoute",
    "pages:Visit",
    "pages:kept",
    "pages:redirect",
)
