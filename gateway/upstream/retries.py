"""May a call be tried again, and after how long? For both lanes."""

from math import inf

from gateway.config.settings import RouterSettings
from gateway.upstream.deployments import Target

# The same target may answer otherwise a moment later: it gave up waiting (408), wants a connection
# without early data (425), has too many calls (429), or failed (5xx; 520 to 527 are of a proxy in
# front of it, 529 is Anthropic's "overloaded"). What is no status of HTTP, 600 and above, counts as
# 5xx. A server that does not know the method (501) or the version of HTTP (505) will not know it
# then, either, and a conflict (409) is the client's to resolve. Sources: RFC 9110 section 15, RFC
# 8470 section 5.2.
# Statuses after which the same target is asked again.
AT_SAME_TARGET = frozenset({408, 425, 429, *range(500, 1000)}) - {501, 505}

# Statuses after which another target is asked.
AT_OTHER_TARGET = AT_SAME_TARGET | {501, 505}

# Answers to credentials and a model name: where these are the operator's and not the client's,
# another target has other ones.
WITH_OTHER_KEY = frozenset({401, 403, 404})

# Statuses of a refusal that may be about what is in the request: another model may take it.
FOR_CONTENT = frozenset({400, 403, 413, 422})

# Keys of a client's request that are LiteLLM's own and no provider's.
ROUTER_KEYS = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks")


def may_help(status: int, target: Target) -> bool:
    """Whether another attempt, here or at the next target, may end better than in `status`."""
    if status in WITH_OTHER_KEY:
        return bool(target.api_key) or not target.client_apis
    return status in AT_OTHER_TARGET


def pause_s(asked: float | None, attempt: int, settings: RouterSettings) -> float:
    """Returns the seconds to wait before the same target is asked again: what its answer asked for,
    else twice as long at each attempt, which count from 0; infinite where it asked for too much."""
    if asked is None:
        return settings.backoff_s * float(2**attempt)
    if asked > settings.max_retry_after_s:
        return inf
    return asked
