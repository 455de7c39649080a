"""Steering as clients see it: requests through a running gateway."""
