"""Strict settings: defaults < `config.yaml` < environment.

Each room's settings classes live next to the code they set; this package composes, reads and checks
them. May import those classes and `errors`.
"""

from gateway.config.load import DEFAULT_FILE, load_settings, misspelt_variables, settings_from_dict
from gateway.config.settings import (
    AuthSettings,
    KeyRights,
    LoggingSettings,
    Mode,
    ServerSettings,
    Settings,
)
from gateway.config.upstreams import (
    OPENAI_API_BASE,
    Deployment,
    Lane,
    RouterSettings,
    TimeoutSettings,
    UpstreamSettings,
)
from gateway.config.values import Secret
from gateway.config.yaml_file import ignored_keys, read_file

__all__ = ["DEFAULT_FILE", "OPENAI_API_BASE", "AuthSettings", "Deployment", "KeyRights", "Lane"]
__all__ += ["LoggingSettings", "Mode", "RouterSettings", "Secret", "ServerSettings", "Settings"]
__all__ += ["TimeoutSettings", "UpstreamSettings", "ignored_keys", "load_settings"]
__all__ += ["misspelt_variables", "read_file", "settings_from_dict"]
