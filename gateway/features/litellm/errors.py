"""Turns what went wrong in a LiteLLM call into one failure in OpenAI's error shape.

The provider's own answer, as the transport saw it, comes first; LiteLLM's exception is the source
only when there was none. Source of the error types and codes: OpenAI API reference, "Error codes";
Anthropic API reference, "Errors"; Google AI "Troubleshooting"; Bedrock "Converse", "Errors"."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress

from gateway.errors import UpstreamFailure, UpstreamMalformed
from gateway.features.litellm.repaired_answers import parsed
from gateway.features.litellm.transport import ProviderCall
from gateway.upstream.base import retry_after_s
from gateway.upstream.providers import TABLE
from gateway.upstream.retries import AT_SAME_TARGET
from gateway.wire.coerce import as_mapping, text_at
from gateway.wire.headers import RawHeaders, header
from gateway.wire.upstream_errors import STATUS_OF_TYPE, Refusal, kind_of, refusal_of, status_of

# status -> (type, code) when the provider sends none.
_BY_STATUS = {
    int(status): (*names.split(), None)[:2] for status, names in TABLE["error_types"].items()
}
_NO_DETAILS: Refusal = {}
_BAD_KEY = re.compile(r"api key (not valid|expired|not found)|api_key_invalid", re.IGNORECASE)
_URL_KEY = re.compile(r"([?&](?:key|api_key|token|signature)=)[^&\s\"']+", re.IGNORECASE)
_LITELLM_PREFIX = re.compile(r"^((litellm\.)?\w+(Error|Timeout|Exception): |\w+Exception - )+")
# What to set in LiteLLM is no advice for a client of the gateway.
_LITELLM_ADVICE = re.compile(
    r"(?:[,.]\s*+|(?<!\s)\s++|)(or|To [^.`]{0,60}) set `litellm\b.*", re.IGNORECASE
)
_RETRY_DELAY = re.compile(r'"retryDelay"\s{0,9}:\s{0,9}"([0-9]{1,9}(?:\.[0-9]{1,9})?)s"')
_DATA_LINE = re.compile(rb"^data:[ ]?(.*)$", re.MULTILINE)
_OPENAI_TYPE = re.compile(r"[a-z][a-z_]+")  # a type that clients of OpenAI or Anthropic know
_WORTH_PASSING = (b"retry-after", b"retry-after-ms", b"request-id")


def failure(
    error: BaseException, call: ProviderCall, *, streaming: bool = False
) -> UpstreamFailure:
    """The failure to raise for `error`; its message holds none of the call's secrets. `streaming`:
    it came while chunks were read, straight from an adapter."""
    got = call.received
    if isinstance(error, UpstreamFailure):
        return error
    if call.failure is not None:
        return call.failure
    if got.status is None:
        return _before_sending(error, call.secrets)
    if got.error_body is not None:
        return _from_answer(got.status, got.headers, got.error_body, secrets=call.secrets)
    return _from_body(error, got.tail, call.secrets, streaming=streaming)


def unfinished(call: ProviderCall) -> UpstreamFailure:
    """The failure of a stream that ended, and not with the end of the provider's turn."""
    return call.failure or UpstreamMalformed(
        "the provider's stream ended before the end of its turn", retryable=True
    )


def _before_sending(error: BaseException, secrets: set[str]) -> UpstreamFailure:
    """The failure of a request that LiteLLM could not turn into one of the provider's. Its words
    end where a traceback, the messages or a bug report's address begin."""
    text = str(getattr(error, "message", None) or error)
    reason = _LITELLM_PREFIX.sub("", text.strip().partition("\n")[0])
    reason = _LITELLM_ADVICE.sub("", reason)
    cause: BaseException | None = error  # a failed import is reported as a failed connection
    while cause is not None and not isinstance(cause, ImportError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        message = f"the provider needs a package that is not installed: {reason}"
        return _build(
            500, message, details={"type": "server_error"}, retryable=False, answered=False
        )
    status = _status_code(error)
    if status in (401, 403, 404):
        return _build(status, hide(reason, secrets), retryable=False, answered=False)
    return _build(
        400,
        hide(f"the request cannot be translated for the provider: {reason}", secrets),
        details={"code": "untranslatable_request"},
        retryable=False,
        answered=False,
    )


def hide(text: str, secrets: Iterable[str]) -> str:
    """`text` without credentials, and without what is a key by its place in a URL."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _URL_KEY.sub(r"\1***", text)


def _from_answer(
    status: int, headers: RawHeaders, body: bytes, secrets: set[str]
) -> UpstreamFailure:
    details = _read(body)
    said = body.decode("utf-8", "replace")
    plain = body[:500].decode("utf-8", "replace").strip()
    if plain.startswith(("<", "{", "[")):  # markup does not help a client
        plain = ""
    text = (
        _text(details, "message", "Message")
        or plain
        or f"the provider answered with status {status}"
    )
    if status == 400 and _BAD_KEY.search(said):
        status = 401
    aws_type = header(headers, b"x-amzn-errortype").split(b":")[0].decode("latin-1")
    wait_s = retry_after_s(headers)
    # Google puts it into the body: {"@type": ".../RetryInfo", "retryDelay": "34s"}
    if wait_s is None and (found := _RETRY_DELAY.search(said)):
        wait_s = float(found[1])
    passed = [
        (name.decode(), value.decode("latin-1"))
        for name, value in headers
        if name in _WORTH_PASSING or b"ratelimit" in name
    ]
    if wait_s is not None and not header(headers, b"retry-after"):
        passed.append(("retry-after", f"{wait_s:g}"))
    return _build(
        STATUS_OF_TYPE.get(aws_type, status) if status in (400, 500) else status,
        hide(text, secrets),
        details=details,
        headers=tuple(passed),
        retryable=status in AT_SAME_TARGET,
        retry_after_s=wait_s,
    )


def _from_body(
    error: BaseException, tail: bytes, secrets: set[str], *, streaming: bool
) -> UpstreamFailure:
    """The failure of a provider that said 200 and then an error, or nothing that can be read."""
    details = None
    for data in reversed(_DATA_LINE.findall(tail) or [tail]):
        with suppress(ValueError):
            details = refusal_of(parsed(data))
        if details is not None:
            status = status_of(details)
            return _build(
                status,
                hide(_text(details, "message") or "the provider reported an error", secrets),
                details=details,
                retryable=status in AT_SAME_TARGET,
            )
    code = None
    if streaming:
        code = _status_code(error)
    if code is not None:
        message = str(getattr(error, "message", None) or error)
        return _build(code, hide(message, secrets), retryable=code in AT_SAME_TARGET)
    return UpstreamMalformed(
        f"the provider's answer could not be read ({type(error).__name__})", retryable=True
    )


def _status_code(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status < 600:
        return status
    return None


def _read(body: bytes) -> Refusal:
    """An error body taken apart, whatever its form."""
    try:
        answer = parsed(body)
    except ValueError:
        return {}
    return refusal_of(answer) or as_mapping(answer)


def _text(details: Refusal, *names: str) -> str | None:
    """The first text under `names` that is not empty."""
    return next((text for name in names if (text := text_at(details, name))), None)


def _build(
    status: int,
    message: str,
    *,
    details: Refusal = _NO_DETAILS,
    headers: tuple[tuple[str, str], ...] = (),
    retryable: bool,
    retry_after_s: float | None = None,
    answered: bool = True,
) -> UpstreamFailure:
    default_type, default_code = _BY_STATUS.get(
        status, ("server_error" if status >= 500 else "invalid_request_error", None)
    )
    kind = kind_of({"": message})
    code = _text(details, "code")
    type = _text(details, "type", "status")
    if status in (400, 413, 422) and kind == "length":
        status = 400
        code = "context_length_exceeded"
    elif status in (400, 403) and kind == "policy":
        status = 400
        code = code or "content_policy_violation"
    code = code or default_code
    if type is None or not _OPENAI_TYPE.fullmatch(type):
        type = default_type
    failed = UpstreamFailure(
        message,
        status=status,
        type=type,
        code=code,
        param=_text(details, "param"),
        headers=headers,
        retryable=retryable,
        retry_after_s=retry_after_s,
    )
    if answered:
        payload = failed.payload()
        payload["error"]["code"] = code  # none is better here than the class's own
        failed.raw_body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
    return failed
