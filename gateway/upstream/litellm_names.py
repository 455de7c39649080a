"""The provider names of the installed LiteLLM, read from its files: importing it takes seconds.

Source: LiteLLM looks a model's prefix up in the enumeration `LlmProviders` (`types/utils.py`) and
in its table of OpenAI-like providers (`llms/openai_like/providers.json`). The price list is no
source: it also files models under names that LiteLLM cannot call (`searxng`, `anyscale`).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
from pathlib import Path

from gateway.wire.coerce import as_mapping

_ENUMERATION = re.compile(r"^class LlmProviders\b.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


@functools.cache
def litellm_names() -> frozenset[str]:
    """Every prefix that LiteLLM reads as a provider; empty when LiteLLM is not installed."""
    spec = importlib.util.find_spec("litellm")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return frozenset().union(*(_enumerated(Path(f)) | _tabled(Path(f)) for f in folders))


def _enumerated(package: Path) -> frozenset[str]:
    found = _ENUMERATION.search(_text(package / "types" / "utils.py"))
    members = (
        [n for n in ast.walk(ast.parse(found[0])) if isinstance(n, ast.Assign)] if found else []
    )
    values = [ast.literal_eval(member.value) for member in members]
    return frozenset(value for value in values if isinstance(value, str))


def _tabled(package: Path) -> frozenset[str]:
    text = _text(package / "llms" / "openai_like" / "providers.json")
    return frozenset(as_mapping(json.loads(text or "{}")))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
