"""What Amazon Bedrock expects of a request, and puts around an answer: signatures and frames."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping

import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from steering_gateway_testing.received import ReceivedRequest

EVENT_STREAM = "application/vnd.amazon.eventstream"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d+/([^/]+)/bedrock/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)
_CHUNK = {
    ":event-type": "chunk",
    ":content-type": "application/json",
    ":message-type": "event",
}


def signature_is_right(request: ReceivedRequest, key: str, secret: str) -> bool:
    """Whether the request has been signed with this key, over what it says, by botocore's rules."""
    found = _SIGNED.fullmatch(request.header("authorization") or "")
    date = request.header("x-amz-date")
    if found is None or date is None or found[1] != key:
        return False
    signer = SigV4Auth(Credentials(key, secret), "bedrock", found[2])
    path = request.target.partition("?")[0]
    signed = AWSRequest(request.method, f"http://{request.header('host')}{path}", data=request.body)
    for name in found[3].split(";"):
        signed.headers[name] = request.header(name) or ""
    signed.params = dict(p.partition("=")[::2] for p in request.query.split("&") if p)
    signed.context["timestamp"] = date
    canonical = signer.canonical_request(signed)
    return bool(signer.signature(signer.string_to_sign(signed, canonical), signed) == found[4])


def event_frame(payload: bytes, headers: Mapping[str, str]) -> bytes:
    """One message of an event stream."""
    said = b""
    for name, value in headers.items():
        encoded = value.encode()
        said += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(encoded))
        said += encoded
    prelude = struct.pack(">II", 16 + len(said) + len(payload), len(said))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + said + payload
    return message + struct.pack(">I", zlib.crc32(message))


def chunk_frame(event: bytes) -> bytes:
    """The message that holds a chunk of a model's answer, with padding behind it."""
    encoded = base64.b64encode(event).decode()
    return event_frame(orjson.dumps({"bytes": encoded, "p": "abcdefgh"}), _CHUNK)


def error_frame(kind: str, message: str) -> bytes:
    """The message that ends a stream with an error."""
    kinds = {":exception-type": kind, ":message-type": "exception"}
    return event_frame(orjson.dumps({"message": message}), kinds)
