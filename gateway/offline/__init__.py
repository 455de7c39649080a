"""Recorded runs, offline: replay them through the core, compare policies, fit the scorer. Nothing
here serves a request."""
