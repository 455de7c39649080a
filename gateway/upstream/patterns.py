"""Model names with a star, as LiteLLM's `model_list` has them: `openai/*`, `*`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gateway.config import Deployment


def longest_match(patterns: Iterable[str], model: str) -> tuple[str, str] | None:
    """(the longest pattern that fits `model`, what its first star stands for); None without one."""
    fitting = [(p, starred) for p in patterns if (starred := _star(p, model)) is not None]
    return max(fitting, key=lambda found: len(found[0]), default=None)


def filled(deployment: Deployment, starred: str) -> Deployment:
    """The deployment for one name that its pattern fits: the star of its model is carried over."""
    model = str(deployment.litellm_params["model"]).replace("*", starred)
    return replace(deployment, litellm_params={**deployment.litellm_params, "model": model})


def _star(pattern: str, model: str) -> str | None:
    parts = (re.escape(part) for part in pattern.split("*"))
    found = re.fullmatch("(.*)".join(parts), model, re.DOTALL)
    return found[1] if found else None
