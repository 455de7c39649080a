"""The dashboard: server-rendered pages over the stores; a module per page, `charts` what is drawn.

What they change and show, they ask of the control plane (`gateway/api`)."""

OFFERS = (
    "pages:COUNTING",
    "pages:Page",
    "pages:PageRoute",
    "pages:Visit",
    "pages:counted",
    "pages:kept",
    "pages:redirect",
)
