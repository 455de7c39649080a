"""The import of LiteLLM: quiet, one thread at a time, and undone when it fails.

A package whose import failed leaves its submodules in `sys.modules`; the next import finds them and
fails with "partially initialized module", as does every one after it. So a failure here takes away
all that the attempt imported of LiteLLM, and the next call starts from the beginning.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_PACKAGE = "litellm"

# Without these LiteLLM downloads tables that it also carries.
LOCAL_TABLES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
}
# LiteLLM loads `.env` of the working directory unless it runs in production, and prints requests
# unless only critical messages are logged.
_DEFAULTS = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "CRITICAL"}

_lock = threading.RLock()


@contextlib.contextmanager
def litellm_imported() -> Iterator[Any]:
    """LiteLLM's package, imported; blocks for seconds the first time.

    If the import or the body of the `with` fails, everything that it imported of LiteLLM is taken
    out of `sys.modules` again. Other threads wait until the body has ended.

    Raises:
        ImportError: LiteLLM, or something it needs, is not installed.
    """
    with _lock:
        os.environ.update(LOCAL_TABLES)
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        if _PACKAGE not in sys.modules:
            _forget(_own_modules())  # left by a failed import of somebody else's
        before = _own_modules()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield importlib.import_module(_PACKAGE)
        except BaseException:
            _forget(_own_modules() - before)
            raise


def _own_modules() -> set[str]:
    """The names of LiteLLM's modules that are imported, wholly or in part."""
    return {name for name in list(sys.modules) if name.partition(".")[0] == _PACKAGE}


def _forget(names: set[str]) -> None:
    """Take modules out of `sys.modules` and off the packages that hold them."""
    for name in names:
        module = sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        if module is not None and getattr(sys.modules.get(parent), child, None) is module:
            delattr(sys.modules[parent], child)
