"""Gateways with a control plane, and gateways before an upstream that relay to it."""

from tests.api.conftest import start as start
from tests.relay.conftest import relay as relay
