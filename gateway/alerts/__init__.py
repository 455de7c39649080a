"""Alerts: what is wrong is noticed by rules, kept in a durable queue, and sent until it arrives.

`rules` decides from plain values, `window` reads counters, `outbox` queues and retries, `messages`
and `sender` write and send, `watch` runs it all beside the requests, never in their way. May import
config, stores by protocol, observability and text.
"""
