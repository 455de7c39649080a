"""Work that a gateway does by itself between start and end: it waits for its database, loads what
the first request needs, removes old runs and listens to the other gateways on its store. No request
calls anything here.
"""
