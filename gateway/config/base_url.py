"""Base URLs of upstreams, read as httpx reads them: LiteLLM and most clients in Python do, too."""

import re

from gateway.values import Value

# A URL that httpx leaves as it is. Most are of this form, and importing httpx takes longer than all
# else that a short command does with a config.
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_PLAIN = re.compile(
    rf"""(?!.{{2000}})
    (?P<stem>(?P<scheme>https?)://
        (?P<netloc>
            (?P<host>
                (?!xn--|[\d.]+(?![\w.-]))[a-z\d._-]+  # a name, which is no number of an address
                |(?:{_BYTE}\.){{3}}{_BYTE}
            )
            (?::(?P<port>(?!(?:80|443)(?!\d))[1-9]\d{{0,4}}))?
        )
        (?:/(?:[\w~-][\w.~-]*)?)*  # no segment begins with a dot
    )
    (?:\?(?P<query>[\w.~=&-]+))?""",
    re.ASCII | re.VERBOSE,
)


class BaseURL(Value):
    """A base URL and its parts."""

    text: str  # the whole, which may have a login, a query and a fragment
    stem: str  # `text` without the query
    scheme: str  # in lower case
    netloc: str  # host and port as they are sent
    host: str  # in lower case; a name that begins with `xn--` in its own letters
    port: str  # empty: the usual one of the scheme
    query: str  # without the question mark; empty without one

    def __str__(self) -> str:
        return self.text


def base_url(text: str) -> BaseURL:
    """A URL and its parts. Raises: ValueError: it is none that httpx could send to."""
    if plain := _PLAIN.fullmatch(text):
        return BaseURL(text=text, **plain.groupdict(""))
    import httpx

    try:
        url = httpx.URL(text)
        return BaseURL(
            text=str(url),
            stem=str(url.copy_with(query=None)),
            scheme=url.scheme,
            netloc=url.netloc.decode("ascii"),
            host=url.host,
            port=str(url.port or ""),
            query=url.query.decode("ascii"),
        )
    except httpx.InvalidURL as exc:
        raise ValueError(str(exc)) from exc
