"""Model names with stars, as in LiteLLM's `model_list`: `openai/*`, `*`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.config import Deployment
from gateway.config.values import Secret
from gateway.upstream.providers import provider_of

_CREDENTIALS = frozenset({"api_key", "extra_headers", "organization"})


def longest_match(patterns: Iterable[str], model: str) -> tuple[str, str] | None:
    """(the longest pattern that matches `model`, the text of its first star), or None."""
    fitting = [(p, starred) for p in patterns if (starred := _star(p, model)) is not None]
    return max(fitting, key=lambda found: len(found[0]), default=None)


def filled(deployment: Deployment, starred: str) -> Deployment:
    """The deployment for one name that matches its pattern: the star in its model is replaced.

    Where the star covers the provider (`model: "*"`), the client chooses it: the deployment's
    secrets are those of the provider that the pattern itself names, and of no other.

    Raises:
        UnknownProvider: the client chose a provider that nobody knows.
    """
    params = deployment.litellm_params
    made = {**params, "model": str(params["model"]).replace("*", starred)}
    if provider_of(made)[0] != provider_of(params)[0]:
        made = {k: v for k, v in made.items() if k not in _CREDENTIALS and type(v) is not Secret}
    return replace(deployment, litellm_params=made)


def _star(pattern: str, model: str) -> str | None:
    """The longest text of the first star with which `pattern` is `model`, or None.

    Read from the right, so that a name with many chances to match costs one pass per star.
    """
    first, *middle, last = pattern.split("*")
    end = len(model) - len(last)
    if not model.startswith(first) or not model.endswith(last):
        return None
    for part in reversed(middle):
        end = model.rfind(part, len(first), end) if end >= len(first) else -1
    return model[len(first) : end] if end >= len(first) else None
