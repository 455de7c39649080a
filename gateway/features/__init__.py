"""Capabilities that can be taken out: each a folder with everything that is its own."""
