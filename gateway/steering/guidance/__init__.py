"""Guidance (E-traces): when it may be looked up, how it reads and where it is placed.

In the order of a request: `plan.note` and `plan.plan`, the look-ups (by the caller),
`decide.decide`, `placement.place`. `pattern` and `codec` hold what is stored, `state` what a run
remembers, `texts` the texts of the monitors. May import the other packages of the decision core.
"""
