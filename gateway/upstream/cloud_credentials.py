"""The gateway's own credentials for Bedrock and Vertex AI, where a client brings none.

Agents that leave signing to a gateway send no credential, or a key of the gateway. The operator's
are spent for them at the provider's own hosts while the gateway has no keys; with keys, and at
other hosts, `default_upstream.cloud_credentials` has to allow it. A client's signature (AWS
Signature Version 4) is for the gateway's name and is never passed on. botocore and google-auth are
optional; both are imported, asked and refreshed in a thread."""

import os
import re
from threading import Lock
from typing import TYPE_CHECKING, Any

from gateway.errors import Forbidden, GatewayError, Unauthorized
from gateway.tasks import Threads
from gateway.upstream.credentials import ANY, family_of_host
from gateway.upstream.deployments import DeploymentTable, Target
from gateway.values import Texts
from gateway.wire.headers import RawHeaders

if TYPE_CHECKING:
    from yarl import URL

_SIGNATURE = b"AWS4-HMAC-SHA256"
_OF_SIGNATURE = (b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256")
_BEARERS = (b"authorization", b"x-goog-api-key")
_REGION = re.compile(r"bedrock-runtime[a-z-]*\.([a-z0-9-]+)\.")
_VARIABLE = "AWS_BEARER_TOKEN_BEDROCK"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_CLOUDS = {  # the family of its hosts, and where its credentials come from
    "bedrock": ("aws", f"{_VARIABLE}, AWS_ACCESS_KEY_ID or AWS_PROFILE"),
    "vertex": ("google", "GOOGLE_APPLICATION_CREDENTIALS, or use `gcloud auth`"),
}
_in_thread = Threads("signing", 8).run


class CloudSigner:
    """Adds the operator's credential to requests that have none."""

    def __init__(self, table: DeploymentTable):
        self._table = table
        self._lock = Lock()
        self._aws: Any = None  # botocore's session, which refreshes its credentials
        self._google: Any = None

    async def signed(
        self,
        target: Target,
        method: str,
        url: "URL",
        headers: RawHeaders,
        body: object,
        refusal: GatewayError | None,
    ) -> RawHeaders:
        """Returns the headers of a request with a credential. `refusal`: raised if the
        operator's credential would be needed and may not be used. Raises: Unauthorized: neither
        the client nor the gateway has a credential; Forbidden: the gateway has one, and the
        settings do not allow its use."""
        if (api := target.seat) not in _CLOUDS:
            return headers
        headers = [h for h in headers if h[0] != _BEARERS[0] or not h[1].startswith(_SIGNATURE)]
        if any(name in _BEARERS for name, _ in headers) or url.query.get("key"):
            return headers
        if refusal is not None:
            raise refusal
        family = family_of_host(url.host or "")
        own, sources = _CLOUDS[api]
        if family not in (own, ANY) or not self._table.lends_credentials(family == own):
            raise Forbidden(
                f"the request has no credential for {api}, and the gateway's own are not used here "
                "(default_upstream.cloud_credentials)"
            )
        if not isinstance(body, bytes):
            raise Unauthorized(f"for {api} the gateway signs bodies of JSON only")
        if api == "bedrock":
            make = self._for_bedrock
        else:
            make = self._for_vertex
        try:
            added = await _in_thread(make, method, url, body)
        except Exception as exc:  # of many kinds, from files, networks and other programs
            missing = isinstance(exc, ImportError)
            raise Unauthorized(
                f"the request has no credential for {api}, and the gateway found none "
                f"({type(exc).__name__}): "
                + (f"install the extra `{api}`" if missing else f"set {sources}")
            ) from exc
        kept = [header for header in headers if header[0] not in _OF_SIGNATURE]
        return [*kept, *((k.lower().encode(), v.encode()) for k, v in added.items())]

    def _for_bedrock(self, method: str, url: "URL", body: bytes) -> Texts:
        if token := os.environ.get(_VARIABLE):
            return {"authorization": f"Bearer {token}"}
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.session import get_session

        with self._lock:
            self._aws = self._aws or get_session()
            found = self._aws.get_credentials()
            if found is None:
                raise LookupError("no AWS credentials")
            found = found.get_frozen_credentials()
            region = _REGION.match(url.host or "")
            if region:
                named = region[1]
            else:
                named = self._aws.get_config_variable("region")
        request = AWSRequest(method=method, url=str(url), data=body)
        SigV4Auth(found, "bedrock", named or "us-east-1").add_auth(request)
        return dict(request.headers.items())

    def _for_vertex(self, method: str, url: "URL", body: bytes) -> Texts:
        import google.auth
        from google.auth.transport.requests import Request

        with self._lock:
            if self._google is None:
                self._google, _ = google.auth.default(scopes=[_SCOPE])
            if not self._google.valid:
                self._google.refresh(Request())
            headers: dict[str, str] = {}
            self._google.apply(headers)
        return headers
