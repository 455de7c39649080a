"""Statistics of experiments: rates, amounts, intervals and caveats, computed from run records.

May import the record types of `stores` and the pure core; no I/O, no clock, fixed random seeds."""
