"""Whether a text holds what looks like a credential; such a text teaches nothing."""

from __future__ import annotations

import re

_CREDENTIAL = re.compile(
    r"""(?xi)
      \b(?:sk|pk|rk|ghp|gho|ghs|ghu|glpat|xox[abprs]|AKIA|ASIA|AIza|hf|npm|pypi|eyJ)[-_A-Za-z0-9]{12,}
    | -----BEGIN | \bbearer\s+\S{8,}
    | (?:password|passwd|secret|token|api[-_]?key|credential)s?["']?\s*[=:]\s*\S{4,}
    | \b[A-Za-z0-9+/_-]{32,}={0,2}
    """
)


def has_secret(text: str) -> bool:
    """True where a credential may be; a long random word counts as one."""
    return _CREDENTIAL.search(text) is not None
