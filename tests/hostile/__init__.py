"""Texts made to be slow to read: every pattern and every reader of text stays linear on them."""
