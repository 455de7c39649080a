"""The hosts to which a provider's key may go, redirects and what LiteLLM fetches included."""

import httpx
from msgspec import Struct

from gateway.errors import UpstreamFailure
from gateway.upstream.credentials import is_foreign_host

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


class Destination(Struct, kw_only=True):
    """The provider of a call and the hosts that its key may go to."""

    provider: str = ""  # LiteLLM's name of it
    base_host: str = ""  # the host of the configured base URL; empty without one
    # keys of other providers, which LiteLLM may find in the environment: never sent
    withheld: frozenset[str] = frozenset()
    # the origin that answered the call itself with a redirect; empty after any other answer
    redirected_from: str = ""

    def refusal(self, request: httpx.Request) -> UpstreamFailure | None:
        """Why a request may not go out: it carries the key of another provider, or would go to a
        host that is another provider's, or to which a provider has redirected it."""
        words = {word for value in request.headers.values() for word in value.split()}
        words.update(request.url.params.values())
        host = request.url.host
        provider = self.provider
        foreign = host != self.base_host and is_foreign_host(provider, host, words)
        if not self.withheld.isdisjoint(words):
            reason = (
                f"there is no key for provider {provider!r}: set litellm_params.api_key, or "
                "the provider's own variable"
            )
        elif foreign and carries_key(request):
            reason = (
                f"provider {provider!r} has no address: set litellm_params.api_base; without "
                f"one, its key would go to {host}"
            )
        elif self.redirected_from not in ("", origin_of(request.url)):
            reason = f"the provider redirected the call to {host}, where no key of it goes"
        else:
            return None
        return UpstreamFailure(
            reason, status=401, type="authentication_error", code="invalid_api_key"
        )


def carries_key(request: httpx.Request) -> bool:
    """Whether a request has a credential; an image that a client names is fetched without one."""
    return request.method == "POST" or any(name in request.headers for name in KEY_HEADERS)


def origin_of(url: httpx.URL) -> str:
    """The scheme, host and port of a URL."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
