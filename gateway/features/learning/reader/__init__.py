"""The reader: the one place where a model reads language for the gateway, if `reader.model` names
one. It is asked off the path of requests, within a budget of its own, and never steered."""
