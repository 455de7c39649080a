"""`gateway demo`: an agent loop against a scripted model, offline, without and with steering. May
import the whole gateway."""

from gateway.demo.show import run_demo

__all__ = ["run_demo"]
