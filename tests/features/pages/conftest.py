"""What the dashboard's tests share with those of the control plane."""

from tests.api.conftest import start

__all__ = ["start"]
