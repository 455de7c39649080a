"""Suite `robust`: the six monitors by the same names, without their known false alarms."""

from gateway.steering.monitors.robust.suite import RobustSuite
from gateway.steering.monitors.robust_settings import RobustSettings

__all__ = ["RobustSettings", "RobustSuite"]
