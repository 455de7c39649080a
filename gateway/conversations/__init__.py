"""The shell around the core: which conversation a request belongs to, and what is remembered."""
