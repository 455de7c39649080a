"""Runs as lines for other programs, alarms that people called wrong, and the statistics that
several features share. May import the stores and what is below them."""
