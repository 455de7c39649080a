"""The key of an operator for gateways of this process that have no admin key."""

from __future__ import annotations

from gateway.auth.authenticator import process_key

CONTROL = {"x-gateway-key": process_key()}
