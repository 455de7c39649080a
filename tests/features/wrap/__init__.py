"""Tests of `gateway wrap`."""
