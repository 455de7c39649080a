"""Alerts: rules find trouble, a durable queue keeps it, and it is sent until it arrives.

`rules` reads counters and decides from plain values, `outbox` queues and retries, `sender` writes
and sends, `watch` runs it all in the background, where no request waits for it.
May import config, stores by protocol, observability and text.
"""
