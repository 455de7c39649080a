"""`gateway demo`: a real agent loop, offline, without and with steering."""

from gateway.demo.show import run_demo

__all__ = ["run_demo"]
