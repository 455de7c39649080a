"""The laboratory: how the shipped weights are fitted, and the figures of docs/evidence.md.

Not in the wheel; `README.md` says how to run it. May import the whole gateway and the tests.
"""
