"""Suite `robust`: monitors of the same names, on the facts that `steering.evidence` reads."""
