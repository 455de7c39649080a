"""Difficulty of the newest step for the agent, in [0, 1]: one scorer per module.

`scorer` has the protocol, the settings and the table of scorers. The default one, which reads the
ledger, is `scoring/difficulty.py`.
"""
