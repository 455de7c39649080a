"""Tests of the stores in a PostgreSQL database."""
