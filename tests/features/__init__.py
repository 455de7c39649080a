"""Tests of what a single feature does, in a folder named like the feature."""
