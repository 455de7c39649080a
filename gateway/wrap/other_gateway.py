"""A gateway that runs already: is it one, and what has it recorded since a time?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway.errors import ConfigError

_ANSWER_S = 10.0
_MOST_RUNS = 100


class OtherGateway:
    """Reads the run log of a gateway over its control plane."""

    def __init__(self, url: str) -> None:
        self.url = url

    def traces(self, since: float) -> list[Mapping[str, Any]]:
        """Every run with a call after `since` (seconds since 1970), oldest first.

        Raises:
            ConfigError: the control plane is closed, or does not answer.
        """
        try:
            with httpx.Client(base_url=self.url, timeout=_ANSWER_S, trust_env=False) as client:
                page: dict[str, str | int] = {"sort": "updated_at", "limit": _MOST_RUNS}
                answer = client.get("/api/runs", params=page)
                if answer.status_code in (401, 403):
                    raise ConfigError("the gateway's control plane needs a key")
                runs = [run for run in _read(answer)["runs"] if run["updated_at"] >= since]
                one = {"content": "false"}
                found = [client.get(f"/api/runs/{run['id']}", params=one) for run in runs]
        except httpx.HTTPError as exc:
            raise ConfigError(f"{self.url} does not answer: {exc}") from exc
        return [_read(answer) for answer in reversed(found)]


def gateway_at(url: str) -> OtherGateway | None:
    """The gateway at an address, with or without `/v1`; None when there is no gateway."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        answer = httpx.get(f"{root}/healthz", timeout=_ANSWER_S, trust_env=False)
        known = answer.status_code == 200 and set(answer.json()) == {"status", "version"}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError):
        return None
    return OtherGateway(root) if known else None


def _read(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise ConfigError(f"{answer.url} answers {answer.status_code}")
    found: dict[str, Any] = answer.json()
    return found
