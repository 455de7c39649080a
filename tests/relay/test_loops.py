"""A gateway whose upstream leads back to it says so, instead of calling itself for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.config.own_address import refuse_self_upstream
from gateway.errors import ConfigError
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.gateways import a_gateway, replace_settings
from steering_gateway_testing.hearing import HELLO, hear


def check_upstream(host: str, url: str) -> None:
    """Check a gateway at `host` whose upstream is `url`."""
    raw = {"server": {"host": host}, "default_upstream": {"api_base": url}}
    refuse_self_upstream(settings_from_dict(raw))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080/v1"),
        ("127.0.0.1", "http://localhost:8080/v1"),
        ("127.0.0.1", "http://127.0.0.2:8080/v1"),
        ("localhost", "http://[::1]:8080/v1"),
        ("0.0.0.0", "http://127.0.0.1:8080/v1"),  # noqa: S104 - compared, not bound
        ("::", "http://[::1]:8080"),
        ("192.0.2.7", "http://192.0.2.7:8080/v1"),
        ("127.0.0.1", "http://0.0.0.0:8080/v1"),
    ],
)
def test_an_upstream_that_is_the_gateway_is_refused(host: str, url: str) -> None:
    """Own address and port, by any of its names."""
    with pytest.raises(ConfigError, match=r"^default_upstream\.api_base: .* gateway itself"):
        check_upstream(host, url)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8081/v1"),
        ("127.0.0.1", "https://api.openai.com/v1"),
        ("192.0.2.7", "http://127.0.0.1:8080/v1"),
        ("127.0.0.1", "http://gateway.example.com:8080/v1"),
    ],
)
def test_an_upstream_elsewhere_is_not_refused(host: str, url: str) -> None:
    """Another port, another address, or a name that is not the gateway's."""
    check_upstream(host, url)


def test_port_80_and_443_are_understood() -> None:
    """A URL without a port has its scheme's."""
    raw = {"server": {"port": 80}, "default_upstream": {"api_base": "http://localhost/v1"}}
    with pytest.raises(ConfigError):
        refuse_self_upstream(settings_from_dict(raw))


@pytest.mark.parametrize("key", ["api_base", "base_url"])
def test_deployments_are_looked_at_too(key: str) -> None:
    """The message names the entry."""
    params = {"model": "openai/x", key: "http://localhost:8080/v1"}
    raw = {"model_list": [{"model_name": "m", "litellm_params": params}]}
    with pytest.raises(ConfigError, match=rf"^model_list\[0\]\.litellm_params\.{key}: "):
        refuse_self_upstream(settings_from_dict(raw))


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[list[AppServer]]:
    """Two gateways that are each other's upstream, which no check of one alone can see."""
    with (
        a_gateway("http://127.0.0.1:9/v1", _made(tmp_path / "a")) as first,
        a_gateway(first.base_url, _made(tmp_path / "b")) as second,
    ):
        replace_settings(first, {"default_upstream": {"api_base": second.base_url}})
        yield [first, second]


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings", "/models"])
def test_a_ring_of_two_gateways_is_found(ring: list[AppServer], path: str) -> None:
    """The request is answered with 508 the first time it comes round."""
    with httpx.Client(base_url=ring[0].base_url, timeout=120) as client:
        method = "GET" if path == "/models" else "POST"
        heard = hear(client, path, method=method, json=HELLO)
    assert (heard.status, heard.error["code"]) == (508, "loop_detected")
    assert "OPENAI_BASE_URL" in heard.error["message"]


def test_a_chain_of_gateways_is_no_ring(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """One gateway behind another serves."""
    with (
        a_gateway(upstream.base_url, _made(tmp_path / "a")) as inner,
        a_gateway(inner.base_url, _made(tmp_path / "b")) as outer,
        httpx.Client(base_url=outer.base_url) as client,
    ):
        assert hear(client, json=HELLO).status == 200
        mark = upstream.last.header("x-gateway-instance") or ""
        assert len(mark.split(", ")) == 2
