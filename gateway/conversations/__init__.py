"""Conversations: finding the one a request belongs to, steering it, recording its reply.

The asynchronous layer around the pure decision core `steering`. The pipeline and the recorder call
it; it imports `dialects`, `stores` (protocols and records), `upstream` and what is below them."""
