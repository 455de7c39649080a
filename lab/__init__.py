"""The laboratory: the figures of docs/evidence.md, and what is fitted.

Not in the wheel; `README.md` says how to run it. May import the whole gateway and the tests.
"""
