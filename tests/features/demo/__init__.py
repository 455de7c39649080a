"""Tests of `gateway demo`."""
