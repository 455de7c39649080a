"""Readers of the logs that agents write, one module for each format (`log_places.py`)."""
