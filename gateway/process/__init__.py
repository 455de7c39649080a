"""The gateway as processes on a machine: their sockets and workers, what is checked before they
start, and where a user's other commands find them. Nothing here knows of requests."""
