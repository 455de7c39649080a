"""Tests of the documents: what they show works, and what is generated is current."""
