"""Difficulty of the newest step for the agent, in [0, 1]: one scorer per module.

`scorer` has the protocol, the settings and the table of scorers; `calibration` reads the fitted
weights, which are data (`weights.json`). May import `steering.transcript` and `steering.evidence`.
"""
