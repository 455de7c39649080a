"""Suite `reference`: the monitors with the formulas of the reference, on the text of calls."""
