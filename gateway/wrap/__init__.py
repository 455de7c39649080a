"""`gateway wrap`: one command (`command`) with a gateway in front of its provider (`own_gateway`),
and a summary at its end."""

from gateway.wrap.wrap import WrapOptions, wrap

__all__ = ["WrapOptions", "wrap"]
