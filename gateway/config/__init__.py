"""Strict settings: defaults < `config.yaml` < environment. A room's settings classes may live next
to the code they set; this package composes, reads and checks them."""

from gateway.config.auth import AuthSettings
from gateway.config.environment import misspelt_variables, unset_variables
from gateway.config.litellm import ignored_keys
from gateway.config.load import (
    DEFAULT_FILE,
    load_settings,
    read_file,
    settings_from_dict,
)
from gateway.config.removed import removed_keys
from gateway.config.settings import (
    OPENAI_API_BASE,
    Deployment,
    Lane,
    LoggingSettings,
    Mode,
    RouterSettings,
    ServerSettings,
    Settings,
    TimeoutSettings,
    UpstreamSettings,
)
from gateway.config.values import Secret

__all__ = ["DEFAULT_FILE", "OPENAI_API_BASE", "AuthSettings", "Deployment", "Lane"]
__all__ += ["LoggingSettings", "Mode", "RouterSettings", "Secret", "ServerSettings", "Settings"]
__all__ += ["TimeoutSettings", "UpstreamSettings", "ignored_keys", "load_settings"]
__all__ += ["misspelt_variables", "read_file", "removed_keys", "settings_from_dict"]
__all__ += ["unset_variables"]
