"""Steering seen from outside: requests through a running gateway."""
