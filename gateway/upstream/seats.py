"""The providers that clients reach with a login or a cloud account instead of an API key.

A client of ChatGPT's backend, of GitHub Copilot, of Code Assist, of the Gemini API, of Vertex AI or
of Bedrock names that API by the path or by a header, and brings a credential that is worth
something there alone. Its requests go to that provider's own host, or to the base that the operator
sets for it, and to no other."""

import re
from urllib.parse import unquote

from gateway.config.base_url import BaseURL, base_url
from gateway.config.settings import UpstreamSettings
from gateway.data_files import read_toml
from gateway.errors import Forbidden, NotFound
from gateway.values import Texts, Value
from gateway.wire.headers import RawHeaders, header


def _any_of(forms: Texts) -> str:
    """The form of what fits one of these, by the name of its group."""
    return "|".join(f"(?P<{name}>{form})" for name, form in forms.items())


_TABLE = read_toml(__package__, "seats.toml")
_PATHS = re.compile(_any_of(_TABLE["paths"]))
# The whole name of a host, and what is before the API's version there.
_PLACE = re.compile(f"/at/(?:{_any_of(_TABLE['hosts'])})(?=/)")
_FOR_REGION = re.compile(_TABLE["region"])
_MODEL = re.compile(
    r"\A(?:(?!/model/).)*+/model/(.+)/(?:invoke|converse|count)"
    r"|(?:odels|/openai/deployments)/([^/]+?)(?:(?::|%3A)\w+)?(?:/|$)"
)
_ENCODED = re.compile("%(?:3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A]|2D)", re.IGNORECASE)
PATHS: list[str] = _TABLE["routes"]

# Of requests whose path and headers need no look: the clients of no seat send them.
_UNSEATED = frozenset({"/v1/chat/completions", "/chat/completions", "/v1/messages"})

_ACCOUNT = b"chatgpt-account-id"
_LOCATION = re.compile(r"/locations/([a-z0-9-]{1,40})/")
# What ChatGPT's backend has as `/codex`: `/v1` of OpenAI's, which some clients leave out.
_AT_OPENAI = re.compile(r"\A(?:/v1|(?!/backend-api))")


class Seat(Value):
    """One API that a client logs in to, as a request asks it."""

    api: str  # name, such as `codex`
    base: BaseURL  # base URL of its host
    path: str  # at that host

    @property
    def model(self) -> str:
        """The one that the path names, if any."""
        if self.api in ("chatgpt", "copilot"):
            found = None
        else:
            found = _MODEL.search(_plain(self.path)) or _MODEL.search(unquote(self.path))
        if found is not None:
            return unquote(found[1] or found[2])
        return ""


class Seats:
    """The bases of these APIs, as the settings name them."""

    def __init__(self, upstream: UpstreamSettings, env: Texts):
        self._region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        bases = {api: getattr(upstream, f"{api}_api_base", None) for api in _TABLE["paths"]}
        bases["google"] = upstream.gemini_api_base
        self._bases = {api: base_url(base.rstrip("/")) for api, base in bases.items() if base}

    def of(self, path: str, headers: RawHeaders, asked: str = "") -> Seat | None:
        """The seat of a request, `path` as the client sent it; None for OpenAI's and Anthropic's
        APIs. `asked`: the path with the host that the client named, if any. Raises: as `_named`;
        NotFound: a path of Azure's without the host."""
        if asked[:4] == "/at/":
            return self._named(asked, path)
        if path in _UNSEATED:
            return None
        found = _PATHS.match(_plain(path))
        if found is None and "%2" in path:  # a route is found with slashes that are encoded, too
            found = _PATHS.match(unquote(path))
        if found is not None:
            api = str(found.lastgroup)
        elif any(name == _ACCOUNT for name, _ in headers):
            api = "chatgpt"
        else:
            return None
        host = ""
        match api:
            case "chatgpt":
                path = _AT_OPENAI.sub("/codex", path).removeprefix("/backend-api")
            case "copilot":
                path = path.removeprefix("/copilot")
            case "vertex":
                host = _vertex_host(path)
            case "bedrock":
                host = self._bedrock_host(path, headers)
            case "azure":
                raise NotFound("Azure's host is not named: /at/NAME.openai.azure.com/openai/...")
        return Seat(api=api, base=self._bases.get(api) or base_url(host), path=path)

    def _named(self, asked: str, path: str) -> Seat:
        """The seat at a host that the client named. Raises: Forbidden: it is no host of a family,
        or the operator has set the base of its API."""
        found = _PLACE.match(asked.lower())
        if found is None:
            raise Forbidden(
                f"{asked[:90]}: /at/ names no host of Azure, Amazon Bedrock or Vertex AI"
            )
        api = str(found.lastgroup)
        if api in self._bases:
            raise Forbidden(f"{found[0]}: default_upstream.{api}_api_base is set, for all requests")
        base = f"https://{found[0][4:]}"
        if base.endswith("/v1"):
            path = path.removeprefix("/v1")
        return Seat(api=api, base=base_url(base), path=path)

    def _bedrock_host(self, path: str, headers: RawHeaders) -> str:
        """The host of the region that a request is for, else of the gateway's own."""
        said = f"{unquote(path)}\n{header(headers, b'authorization')!r}"
        region = self._region
        if found := _FOR_REGION.search(said):
            region = found["arn"] or found["signed"]
        return f"https://bedrock-runtime.{region}.amazonaws.com"


def _plain(path: str) -> str:
    """The path as routes are found by it: letters and digits may be encoded, too."""
    return _ENCODED.sub(lambda found: unquote(found[0]), path).replace("%3a", "%3A")


def _vertex_host(path: str) -> str:
    """The host of the location in a path. Source: Vertex AI's reference, "Service endpoint"."""
    place = _LOCATION.findall(f"{path}/locations/global/")[0]
    name = _TABLE["vertex"].get(place, f"{place}-aiplatform")
    return f"https://{name}.googleapis.com"
