"""The wires a client may speak: each gives the core one view and takes the decision back."""

from gateway.dialects.base import ChatView, Dialect, SteeredRequest, StreamRead
from gateway.dialects.chat import CHAT
from gateway.dialects.messages import MESSAGES
from gateway.dialects.responses import RESPONSES

__all__ = [
    "CHAT",
    "MESSAGES",
    "RESPONSES",
    "ChatView",
    "Dialect",
    "SteeredRequest",
    "StreamRead",
]
