"""The inbound edge: requests are read, authenticated, handed to the pipeline, and relayed back.

May import the pipeline, the runtime and everything below them; never the control plane."""
