"""Guidance (E-traces): when it may be looked up, how it reads and where it is placed.

In the order of a request: `plan.note`, `plan.plan`, the look-ups (by the caller), `decide.decide`,
`placement.place`. May import the other packages of the decision core."""
