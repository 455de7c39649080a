"""LiteLLM's package, which may be installed: looked for without an import of it."""

import importlib.util
from functools import cache
from pathlib import Path

from gateway.hooks import features

WITHOUT_LITELLM = "LiteLLM is not installed: `pip install .` in a clone of the gateway adds it"


@cache
def litellm_folders() -> list[Path]:
    """The folders of LiteLLM's package, which is not imported; empty when it is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec:
        return [Path(folder) for folder in (spec.submodule_search_locations or ())]
    return []


def can_translate() -> bool:
    """True if LiteLLM is installed, and the feature that calls it is there."""
    return bool(litellm_folders()) and "litellm" in features()
