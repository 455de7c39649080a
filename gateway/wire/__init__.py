"""OpenAI-compatible bytes to values and back: requests, event streams, messages, tool calls, usage.

Pure: imports the standard library, values, the error tree, and packages that read bytes. What is
not edited is never serialised again, so that a body leaves as the client wrote it."""
