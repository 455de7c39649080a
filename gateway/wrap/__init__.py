"""`gateway wrap`: one command with a gateway in front of its provider, and a summary at its end.

`command` has what each agent reads and runs it with the terminal untouched, `own_gateway` serves
it, `wrap` reports what happened. May import the whole gateway.
"""

from gateway.wrap.wrap import WrapOptions, wrap

__all__ = ["WrapOptions", "wrap"]
