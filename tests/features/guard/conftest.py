"""What the guard's tests share with those of a running gateway, and of the stores."""

from tests.live.conftest import http

__all__ = ["http"]
