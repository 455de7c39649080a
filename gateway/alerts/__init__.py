"""Alerts: what is wrong is noticed by rules, kept in a durable queue, and sent until it arrives.

`rules` decides from plain values, `window` reads counters, `outbox` queues and retries, `messages`
and `sender` write and send, `watch` runs it all in the background, where no request waits for it.
May import config, stores by protocol, observability and text.
"""
