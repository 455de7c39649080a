"""The gateway's own cloud credentials: what is signed for which host, and what is said without."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from gateway.config import settings_from_dict
from gateway.config.base_url import base_url
from gateway.errors import Forbidden, GatewayError, Unauthorized
from gateway.upstream.cloud_credentials import CloudSigner
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.seats import Seat
from gateway.wire.headers import RawHeaders
from steering_gateway_testing.looping import looping_model
from tests.dialects import clouds

AWS = "https://bedrock-runtime.us-west-2.amazonaws.com/model/a%2Fb/invoke"
GOOGLE = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/m:rawPredict"


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE", "BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


def signed(
    api: str,
    url: str,
    headers: RawHeaders | None = None,
    refusal: GatewayError | None = None,
    **upstream: Any,
) -> dict[bytes, bytes]:
    """The headers of a call to a host, as they leave."""
    table = DeploymentTable(settings_from_dict({"default_upstream": upstream}, {}), {})
    seat = Seat(api=api, base=base_url(url), path="")
    target = table.default.for_client(None, api, seat)
    signer = CloudSigner(table)
    given = headers or []
    return dict(asyncio.run(signer.signed(target, "POST", URL(url), given, b"{}", refusal)))


def test_the_region_is_that_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bearer token of Bedrock's is sent instead of a signature."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    given = signed("bedrock", AWS)[b"authorization"].decode()
    assert "/us-west-2/bedrock/aws4_request" in given
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "made-up-token")
    assert signed("bedrock", AWS)[b"authorization"] == b"Bearer made-up-token"


@pytest.mark.parametrize(
    ("api", "url", "allowed"),
    [
        ("bedrock", GOOGLE, True),
        ("bedrock", "https://api.openai.com/model/a/invoke", True),
        ("bedrock", "http://127.0.0.1:9/model/a/invoke", None),
        ("bedrock", AWS, False),
        ("vertex", AWS, True),
    ],
)
def test_no_other_host_gets_the_credential(
    monkeypatch: pytest.MonkeyPatch, api: str, url: str, allowed: bool | None
) -> None:
    """Whatever the settings say of a host of another provider."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "made-up-token")
    with pytest.raises(Forbidden, match="cloud_credentials"):
        signed(api, url, cloud_credentials=allowed)


def test_what_a_client_brings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a refusal of the key's rights comes before a signature. Other seats are not signed."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "made-up-token")
    own = [(b"authorization", b"Bearer of-the-client"), (b"x-amz-date", b"d")]
    assert signed("bedrock", AWS, own) == dict(own)
    assert signed("vertex", GOOGLE, own[:1]) == dict(own[:1])
    assert signed("vertex", f"{GOOGLE}?key=of-the-client") == {}
    assert signed("google", "https://generativelanguage.googleapis.com/v1beta/models") == {}
    with pytest.raises(Forbidden, match="inference only"):
        signed("bedrock", AWS, refusal=Forbidden("inference only"))


@pytest.mark.parametrize(
    ("api", "url", "missing", "says"),
    [
        ("bedrock", AWS, "botocore.auth", "install the extra `bedrock`"),
        ("vertex", GOOGLE, "google.auth", "install the extra `vertex`"),
        ("bedrock", AWS, "", "AWS_ACCESS_KEY_ID"),
        ("vertex", GOOGLE, "", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, api: str, url: str, missing: str, says: str
) -> None:
    """The extra, or the variable."""
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Unauthorized, match=says):
        signed(api, url)


def test_a_service_account_of_google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its token is asked for once, and used until it expires."""
    with clouds.running(looping_model(0)) as host:
        clouds.service_account(host, tmp_path / "account.json")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        table = DeploymentTable(settings_from_dict({}, {}), {})
        signer = CloudSigner(table)
        target = table.default.for_client(
            None, "vertex", Seat(api="vertex", base=base_url(GOOGLE), path="")
        )

        async def twice() -> list[RawHeaders]:
            calls = [signer.signed(target, "POST", URL(GOOGLE), [], b"{}", None) for _ in "ab"]
            return await asyncio.gather(*calls)

        found = asyncio.run(twice())
    expected = f"Bearer {clouds.GOOGLE_TOKEN}".encode()
    assert [dict(h)[b"authorization"] for h in found] == [expected] * 2
    assert host.tokens == 1
