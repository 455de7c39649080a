"""Deployments that failed repeatedly and are not asked for a while; outlives the config."""

from __future__ import annotations

import json
from hashlib import blake2b

from gateway.config import Deployment


class DeploymentRests:
    """Failures in a row and rests, by the place of a deployment (`place_of`).

    One object serves all versions of the config: a deployment that a reload leaves as it was goes
    on resting, and requests that began before the reload still count.
    """

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, place: str, now: float, *, allowed: int, rest_s: float) -> bool:
        """Count a failure at `now` in seconds; the `allowed`th in a row begins a rest: True."""
        count = self._failures.get(place, 0) + 1
        if count < allowed:
            self._failures[place] = count
            return False
        self._failures.pop(place, None)
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[place] = now + rest_s
        return True

    def succeeded(self, place: str) -> None:
        """Forget the failures of a place."""
        if self._failures:
            self._failures.pop(place, None)

    def is_resting(self, place: str, now: float) -> bool:
        """Whether a place is not to be asked at `now`, in the seconds of `failed`."""
        return self._until.get(place, now) > now


def place_of(deployment: Deployment, api_key: str | None) -> str:
    """What stays equal while a deployment has the same address, model and key: a digest.

    All texts of its `litellm_params` count, because regions, projects and API versions are part of
    an address; its name, weight and the numbers among the parameters do not.
    """
    params = deployment.litellm_params
    texts = {name: value for name, value in params.items() if isinstance(value, str)}
    described = json.dumps(
        [texts, params.get("extra_headers"), api_key], sort_keys=True, default=str
    )
    return blake2b(described.encode("ascii"), digest_size=16).hexdigest()
