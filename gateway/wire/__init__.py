"""OpenAI-compatible bytes to values and back: requests, event streams, messages, tool calls, usage.

Pure, and free of any package: imports the standard library and the error tree only. What is not
edited is never serialised again, so that a body leaves as the client wrote it."""
