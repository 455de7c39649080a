"""Strict settings: defaults < `config.yaml` < environment. A room's settings classes may live next
to the code they set; this package composes, reads and checks them."""

from gateway.config.auth import AuthSettings
from gateway.config.environment import misspelt_variables, naming_the_variable, unset_variables
from gateway.config.litellm import ignored_keys
from gateway.config.load import (
    DEFAULT_FILE,
    config_file,
    load_settings,
    read_file,
    settings_from_dict,
)
from gateway.config.removed import removed_keys
from gateway.config.settings import (
    OPENAI_API_BASE,
    Deployment,
    LoggingSettings,
    RouterSettings,
    ServerSettings,
    Settings,
    TimeoutSettings,
)
from gateway.config.values import Secret
