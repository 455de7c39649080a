"""Guidance for a call: the situation of a run in words, lessons, and the form of patterns."""
