"""Alerts: rules find trouble, a durable queue keeps it, and it is sent until it arrives, in the
background. May import config, stores by protocol, observability and text."""
