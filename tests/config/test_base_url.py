"""Base URLs are read as httpx reads them, most of them without it."""

from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import settings_from_dict
from gateway.config.base_url import _PLAIN, BaseURL, base_url
from gateway.errors import ConfigError
from tests.examples import examples

PLAIN = (
    "https://api.openai.com/v1",
    "http://localhost:8080",
    "http://127.0.0.1:11434/v1/",
    "https://my-name.openai.azure.com/openai/deployments/GPT_4.1?api-version=2024-10-21",
    "http://a_b.c-d.svc.cluster.local:1/x//y~",
)
PARTS = (
    ("http://", "https://", "HTTP://", "ftp://", "//", ""),
    ("", "", "", "u:p@", "a%20b:@", "ü@", "@", "u:p%@"),
    (
        *("a", "api.openai.com", "API.Example.com", "localhost", "a..b", ".a", "a.", "-a", "a_b"),
        *("127.0.0.1", "1.2.3.4", "1.2.3", "1.2.3.999", "01.2.3.4", "1.2.3.4.5", "1.2.3.4a", "1"),
        *("[::1]", "[::G]", "[", "münchen.de", "xn--mnchen-3ya.de", "xn--a", "a.xn--mnchen-3ya.de"),
        *("ü..de", "a%41", "a b", "a\\b", "a|b", "", "xn", "中国.icom.museum", "0x7f.1", "a~b"),
    ),
    ("", "", ":80", ":443", ":8080", ":1", ":0", ":080", ":65535", ":99999", ":", ":x", ":-1"),
    (
        *("", "/", "/v1", "/v1/", "/a/./b", "/a/../b", "/.a", "/a.", "/a.b", "/..", "//", "/a//b"),
        *("/%41", "/%zz", "/%", "/a b", "/ü", "/a;b", "/a:b", "/a@b", "/A_b~c", "a", ":a", "/\x00"),
    ),
    ("", "", "?", "?a=1", "?a=b&c=d-e_f.g~", "?a b", "?ü=%41", "?a/b", "?a?b", "?a=1&"),
    ("", "", "", "#", "#a", "#a b?c", "?x"),
)


def read_by_httpx(text: str) -> BaseURL | None:
    """None for a URL that httpx refuses."""
    try:
        url = httpx.URL(text)
        return BaseURL(
            text=str(url),
            stem=str(url.copy_with(query=None)),
            scheme=url.scheme,
            netloc=url.netloc.decode(),
            host=url.host,
            port=str(url.port or ""),
            query=url.query.decode(),
        )
    except (httpx.InvalidURL, ValueError):
        return None


@examples(300)
@given(st.tuples(*map(st.sampled_from, PARTS)).map("".join))
def test_a_url_has_the_parts_that_httpx_reads(text: str) -> None:
    """Internationalised names, ports, logins, percent signs and dots, and what is refused."""
    try:
        found = base_url(text)
    except ValueError:
        found = None
    assert found == read_by_httpx(text)


@pytest.mark.parametrize("text", PLAIN)
def test_a_usual_url_is_read_without_httpx(text: str) -> None:
    """To import it takes longer than all else that a short command does with a config."""
    assert _PLAIN.fullmatch(text)
    assert base_url(text) == read_by_httpx(text)
    assert base_url(text).text == text


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("http://1.2.3.999/v1", r"'http://1\.2\.3\.999/v1': Invalid IPv4 address: '1\.2\.3\.999'"),
        ("http://ü..de/v1", r"'http://ü\.\.de/v1': Invalid IDNA hostname: 'ü\.\.de'"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused_by_its_key(base: str, says: str) -> None:
    """Not by an error of the client library, which names no key."""
    deployment = {"model_name": "a", "litellm_params": {"model": "openai/x", "api_base": base}}
    with pytest.raises(ConfigError) as refused:
        settings_from_dict({"default_upstream": {"api_base": base}, "model_list": [deployment]})
    keys = ("default_upstream.api_base", r"model_list[0].litellm_params.api_base")
    assert [fault.partition(": ")[0] for fault in refused.value.faults] == list(keys)
    for fault in refused.value.faults:
        assert re.search(says, fault)
