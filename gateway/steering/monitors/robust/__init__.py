"""Suite `robust`: monitors of the same names without the known false alarms of the reference.

They observe the facts that `steering.evidence` reads off a step, not its text.
"""
