"""The wire formats that clients may speak, one module each, and the table of them.

A dialect gives the core one view of its requests and answers, and turns the core's edits into
changes of the client's text. Whatever depends on the dialect is a method or an attribute of it:
nothing elsewhere compares its name. Pure: imports `wire`, `steering` and the error tree only."""

from collections.abc import Mapping

from gateway.dialects.base import Dialect, LiteLLMCall, SteeredRequest
from gateway.dialects.chat import CHAT
from gateway.dialects.converse import CONVERSE
from gateway.dialects.gemini import GEMINI
from gateway.dialects.messages import MESSAGES
from gateway.dialects.messages_cloud import BEDROCK, VERTEX
from gateway.dialects.responses import RESPONSES

# Name -> dialect. A new dialect needs its module and a row here.
DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (CHAT, RESPONSES, MESSAGES, BEDROCK, CONVERSE, VERTEX, GEMINI)
}
