"""Suite `reference`: the monitors with the formulas of the reference, exactly.

They observe the text of one call at a time.
"""
