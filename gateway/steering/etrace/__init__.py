"""E-traces: learned guidance, when it may be looked up, how it reads and where it is placed.

In the order of a request: `gate.note` and `gate.plan`, the look-ups (by the caller),
`decide.decide`, `placement.place`. `pattern` and `codec` hold what is stored, `state` what a run
remembers.
"""
