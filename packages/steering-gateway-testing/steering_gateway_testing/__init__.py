"""A scripted provider for tests, demonstrations and benches: real HTTP, deterministic, with faults.

`ScriptedUpstream` is the server, `Reply`, `ToolCall` and `Usage` say what the model answers,
`Fault` and `FaultKind` what goes wrong, `ReceivedRequest` is what arrived, and `closed_port` gives
a port that refuses connections. `LoopbackServer` serves byte by byte. As a separate process:
`python -m steering_gateway_testing --port 9000`.
"""

from steering_gateway_testing.loopback import LoopbackServer
from steering_gateway_testing.ports import closed_port
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.server import AppServer
from steering_gateway_testing.upstream import Script, ScriptedUpstream
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall, Usage

__all__ = [
    "AppServer",
    "Fault",
    "FaultKind",
    "LoopbackServer",
    "ReceivedRequest",
    "Reply",
    "Script",
    "ScriptedUpstream",
    "ToolCall",
    "Usage",
    "closed_port",
]
