"""The control plane below `/api`: one module per resource, its operations as values.

May import the runtime, auth, the store protocols, reporting and the helpers of `endpoints`; never
the pipeline. Imported at the first request (`gateway.app`), because pydantic slows the start."""
