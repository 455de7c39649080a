"""Conversations between the request and the store, without sockets."""
