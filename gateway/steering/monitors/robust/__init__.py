"""Suite `robust`: the six monitors by the same names, without their known false alarms."""

from gateway.steering.monitors.robust.settings import RobustSettings
from gateway.steering.monitors.robust.suite import RobustSuite

__all__ = ["RobustSettings", "RobustSuite"]
