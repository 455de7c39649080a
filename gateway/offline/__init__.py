"""Recorded runs, offline: replay them through the core, compare policies, fit the scorer.

Nothing here serves a request. May import the pure core, the config, the price and model catalogues
of `upstream`, and `text`.
"""
