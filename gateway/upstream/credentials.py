"""The rule which credential may go to which host, asked by every lane, route and fallback.

A credential is the client's, the operator's (in the config, or in a variable of the provider), or a
key of this gateway. `docs/security.md` has the rule as a table; a test compares the two.
- A key of this gateway, or a text of that form, goes nowhere.
- The operator's key goes to the host of its deployment only, and takes the client's place there.
- The client's credential goes to the host that the client believes to speak with: the default
  upstream of its API, deployments on that host, and those with `forward_client_key`.
- At a host of a known provider, no header and no key of another known provider arrives, by any
  header or in the query.
- At a server of the operator's, no login arrives but that of the API which is spoken there."""

import binascii
import json
import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote_plus, urlsplit

from gateway.errors import Unauthorized
from gateway.upstream.deployments import Target
from gateway.upstream.providers import TABLE
from gateway.values import Texts
from gateway.wire.headers import RawHeaders

ANY = "any"  # the family of credentials and hosts that name no provider

_HOSTS = {name: tuple(ends) for name, ends in TABLE["hosts"].items()}
_KEYED_HOSTS: Texts = TABLE["keyed_hosts"]
# Headers that authenticate a client, and the provider that they belong to.
_HEADERS = {name.encode(): owner for name, owner in TABLE["key_headers"].items()}

# Headers of other services (`helicone-auth`, `ocp-apim-subscription-key`, `x-auth-token`).
_OTHER_CREDENTIAL = re.compile(
    rb"(?:^|[-_])(?:api[-_]?key|(?:access|subscription|auth)-key|auth|authorization|token|secret"
    rb"|password)$"
)
_OTHER = "other"  # what such headers belong to
_PREFIXES = ((b"x-goog-", "google"), (b"x-amz-", "aws"), (b"chatgpt-", "chatgpt"))
_PROTOCOLS = b"sec-websocket-protocol"
_PROTOCOL_KEY = b"openai-insecure-api-key."  # how a browser sends OpenAI its key (Realtime API)
# The cookie of a browser's session with the dashboard, which browsers send to every path.
SESSION_COOKIE = "gateway_session"

_SESSION = re.compile(rb"(?:^|;)\s*" + SESSION_COOKIE.encode() + rb"=[^;]*")

# Parameters of a query that authenticate, and the provider; ANY for those of nobody here.
_QUERY_KEYS: Texts = TABLE["key_parameters"]

_ANY_FORM = "|".join(f"(?P<{name}>{form})" for name, form in TABLE["key_forms"].items())
_FORM = re.compile(f"(?<![A-Za-z0-9])(?:{_ANY_FORM})")
_TOKEN = re.compile(r"(?<![A-Za-z0-9])eyJ[\w-]{4,300}\.([\w-]{1,16000})")  # RFC 7519
_CHATGPT_CLAIM = "https://api.openai.com/auth"
# Providers whose credentials stand for a person or an account, and go to no server of the
# operator's but one that is configured for their API.
_LOGINS = frozenset({"chatgpt", "github", "google", "aws"})

# The family of a host that the operator configured for such an API, where its name shows none.
_OF_SEAT = {"chatgpt": "chatgpt", "bedrock": "aws", "copilot": "github"} | dict.fromkeys(
    ("google", "vertex", "code_assist"), "google"
)

_GATEWAY_KEY = re.compile(rb"gw-[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")  # see `make_key`


@lru_cache(maxsize=1024)
def family_of_host(host: str) -> str:
    """The provider that a host belongs to; ANY for other servers."""
    return next((f for f, ends in _HOSTS.items() if f".{host}".endswith(ends)), ANY)


@lru_cache(maxsize=1024)
def owner_of_host(host: str) -> str:
    """As `family_of_host`, with the providers that take other providers' headers."""
    keyed = (o for o, end in _KEYED_HOSTS.items() if f".{host}".endswith(end))
    return next(keyed, family_of_host(host))


@lru_cache(maxsize=1024)  # clients choose the names
def _belongs_to(name: bytes) -> str | None:
    """The provider that a header authenticates to, by its name in lower case; None: to nobody."""
    other = None
    if _OTHER_CREDENTIAL.search(name):
        other = _OTHER
    starts = (family for start, family in _PREFIXES if name.startswith(start))
    return _HEADERS.get(name) or next(starts, other)


def may_hold_key(name: bytes) -> bool:
    """Whether a header, by its name in lower case, is one that authenticates."""
    return name == _PROTOCOLS or _belongs_to(name) is not None


def family_of_key(key: str) -> str:
    """The provider that a key, or a key within a text, shows by its form, and a token by the name
    of its issuer; ANY for most keys."""
    found = _FORM.search(key)
    if found is None:
        return _issuer(key)
    return found.lastgroup or ANY


def _issuer(text: str) -> str:
    if "eyJ" not in text or (token := _TOKEN.search(text)) is None:
        return ANY
    try:
        claims = json.loads(urlsafe_b64decode(token[1] + "=="))
        if _CHATGPT_CLAIM in claims:
            return "chatgpt"
        return family_of_host(urlsplit(claims["iss"]).hostname or claims["iss"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ANY


def _stray(text: str, owner: str, claude: bool) -> str:
    """The provider whose key a text shows, if it may not go to a host of `owner`; else ANY. A
    server of the operator's may be asked with any key for it, but with no login; `claude`: but with
    Claude's, because it is the one for Anthropic's API."""
    shown = family_of_key(text)
    if owner != ANY or shown == ANY:
        if shown == owner:
            return ANY
        return shown
    if shown == "anthropic":
        if not claude and "sk-ant-oat" in text:
            return shown
        return ANY
    if shown == "chatgpt":
        return shown
    if shown in _LOGINS and _FORM.search(text):
        return shown
    return ANY


def family_of_provider(provider: str) -> str:
    """The family of a provider as LiteLLM names it."""
    return next((family for family, names in TABLE["companies"].items() if provider in names), ANY)


def has_gateway_key(text: bytes) -> bool:
    """True if the text contains anything in the form of this gateway's keys."""
    return b"gw-" in text and _GATEWAY_KEY.search(text) is not None


def refuse_key_in_path(path: str) -> None:
    """Refuse a path that contains a key of this gateway. Raises: Unauthorized."""
    if "gw-" in path and has_gateway_key(path.encode("utf-8", "replace")):
        raise _gateway_key("the path")


def speaks_anthropic(headers: RawHeaders) -> bool:
    """Whether a client on a route of no dialect is one of Anthropic's API."""
    for name, value in headers:
        if name == b"anthropic-version" or (name == b"x-api-key" and value):
            return True
        if name == b"authorization" and value[7:14] == b"sk-ant-":
            return True
    return False


def operator_key(target: Target) -> str | None:
    """The configured key of a target; None if its host is another provider's than the key."""
    if not target.api_key:
        return None
    owner = owner_of_host(target.api_base.host)
    own = {ANY, owner, family_of_provider(target.provider)}
    if owner == ANY or family_of_key(target.api_key) in own:
        return target.api_key
    return None


def allowed(headers: RawHeaders, query: bytes, target: Target, api: str) -> RawHeaders:
    """The client's headers that a target may see; `api`: the client's, `openai` or `anthropic`.
    Raises: Unauthorized: the client's credential is a key of this gateway that is not known, or a
    key of another provider than the one it would be sent to."""
    for name, value in headers:
        if has_gateway_key(value):
            raise _gateway_key(name.decode("latin-1"))
    host = target.api_base.host
    family, owner = _families(target)
    replaced = operator_key(target) is not None or api not in target.client_apis
    claude = api == "anthropic" and "messages" in target.dialects and target.lane == "native"
    claude = claude and target.api_base == target.messages_base
    if query:
        _refuse_query(query, target, claude, replaced=replaced)
    kept = []
    for name, value in headers:
        belongs_to = _belongs_to(name)
        if belongs_to == "anthropic" and target.seat == "azure":
            belongs_to = "azure"  # which serves Claude with its own keys in Anthropic's header
        if replaced and belongs_to is not None and (belongs_to != _OTHER or owner != ANY):
            continue
        if belongs_to == "chatgpt" != family:
            raise _foreign(name.decode("latin-1"), "ChatGPT", host)
        if family != ANY and belongs_to not in (None, ANY, family):
            continue
        looked = owner != ANY or belongs_to is not None
        if looked and (shown := _shown(name, value, owner, claude=claude)) != ANY:
            if replaced:
                continue
            raise _foreign(name.decode("latin-1"), shown, host)
        if name == b"cookie" and SESSION_COOKIE.encode() in value:  # of this gateway's dashboard
            value = _SESSION.sub(b"", value).strip(b"; ")
        elif replaced and name == _PROTOCOLS and _PROTOCOL_KEY in value:
            offered = [part.strip() for part in value.split(b",")]
            value = b", ".join([p for p in offered if not p.startswith(_PROTOCOL_KEY)])
        else:
            kept.append((name, value))
            continue
        if value:
            kept.append((name, value))
    return kept


def _families(target: Target) -> tuple[str, str]:
    """Returns two providers: whose headers, and whose keys, the host of a target accepts."""
    host = target.api_base.host
    own = _OF_SEAT.get(target.seat, ANY)
    family = family_of_host(host)
    owner = owner_of_host(host)
    if owner != ANY:
        return (family, owner)
    return (own, own)


def _refuse_query(query: bytes, target: Target, claude: bool, replaced: bool) -> None:
    """Refuse a key in the query that is not one of the target's. `replaced`: the client's own
    credential does not go there at all."""
    text = query.decode("latin-1")
    plain = unquote_plus(text)
    if has_gateway_key(plain.encode()):
        raise _gateway_key("the query")
    host = target.api_base.host
    family, owner = _families(target)
    if (shown := _stray(plain, owner, claude)) != ANY:
        raise _foreign("the query", shown, host)
    if family == ANY:
        return
    for part in text.split("&"):
        name = unquote_plus(part.partition("=")[0])
        belongs_to = _QUERY_KEYS.get(name.lower())
        if belongs_to is not None and (replaced or belongs_to != family):
            raise Unauthorized(f"{name!r} in the query: no key is sent to {host} in this way")


def client_key(headers: RawHeaders, target: Target, api: str) -> str | None:
    """The key that the client sent for the provider of the target's host. Raises: as `allowed`."""
    for name, value in allowed(headers, b"", target, api=api):
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].decode("latin-1").strip()
        if name in (b"x-api-key", b"x-goog-api-key"):
            return value.decode("latin-1")
    return None


def is_foreign_host(provider: str, host: str, key_words: Iterable[str]) -> bool:
    """True if LiteLLM's call to `provider` goes to a host of another known provider, or carries
    a key of a known provider other than the host's."""
    family = family_of_host(host)
    if family == ANY:
        return False
    if family_of_provider(provider) not in (family, *_SHARED.get(family, ())):
        return True
    return any(family_of_key(word) not in (ANY, family) for word in key_words)


# Both are reached with the same company's tokens.
_SHARED = {"azure": ("openai",)}


def _shown(name: bytes, value: bytes, owner: str, claude: bool) -> str:
    """The provider whose key a header shows, in any scheme, if it may not go to a host of `owner`;
    else ANY."""
    text = value.decode("latin-1")
    if name == b"authorization" and text[:6].lower() == "basic ":
        try:
            text = b64decode(text[6:].strip()).decode("latin-1")
        except (binascii.Error, ValueError):
            return ANY
    return _stray(text, owner, claude)


def _foreign(place: str, owner: str, host: str) -> Unauthorized:
    return Unauthorized(
        f"{place}: this is a credential of {owner}, and the request would go to {host}; nothing "
        "was sent"
    )


def _gateway_key(place: str) -> Unauthorized:
    return Unauthorized(
        f"{place}: this has the form of a key of this gateway; it is not known, and never sent "
        "to a provider"
    )
