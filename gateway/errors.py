"""The errors that the gateway raises or passes on, and how each is answered.

    Exception
    ├── ConfigError               start-up or reload: the settings are wrong
    └── GatewayError              answered by the gateway itself, in OpenAI's error shape
        ├── BadRequest            400
        │   └── UnknownProvider       the model's prefix is no provider's name
        ├── Unauthorized          401
        ├── Forbidden             403
        ├── NotFound              404
        ├── MethodNotAllowed      405
        ├── RequestTooSlow        408
        ├── BodyTooLarge          413
        ├── HeadTooLarge          431
        ├── LoopDetected          508
        ├── Overloaded            429 or 503, with `retry-after`
        ├── ShuttingDown          503, with `retry-after`
        ├── RunRefused            429: the operator, or a budget, lets the run go no further
        │   ├── BudgetExceeded        the call would take a budget over its limit
        │   │   └── RateLimited       the same until the next minute, or the next hour at most
        │   ├── RunStopped            the run was stopped
        │   └── RunPaused             the run is paused, with `retry-after`
        └── UpstreamFailure       the upstream call failed
            ├── UpstreamUnreachable   502
            ├── UpstreamMalformed     502
            └── UpstreamTimeout       504

`label` comes from a closed set and is used for metrics; it never contains text of a request."""

import json
import re
from typing import TypedDict, Unpack

Headers = tuple[tuple[str, str], ...]
# A system error's number, and the folder in which a backup is made or unpacked, but for its name.
_UNSAID = re.compile(r"\[Errno -?\d+\] |\.making-[^']*|(?<=')[^']*\.replacing-([^']*)-\w{8}/[^']*")


class ConfigError(Exception):
    """Settings are wrong; each of `faults` starts with a key path, or with the file's name."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def in_words(error: Exception) -> str:
    """The text of an error, without the number of the system's, and without temporary folders."""
    return _UNSAID.sub(r"\1", str(error))


class AnswerParts(TypedDict, total=False):
    """The parts of one error answer that differ from those of its class."""

    status: int | None  # of HTTP
    type: str | None  # as in OpenAI's API, such as `invalid_request_error`
    code: str | None  # as in OpenAI's API; None for none
    param: str | None  # the key, header or parameter that is wrong; None for none
    headers: Headers  # sent with the answer, such as `retry-after`
    label: str | None  # in metrics; a closed set


class GatewayError(Exception):
    """An error answer in OpenAI's shape: status, `type`, `code`, `param` and a message."""

    status = 500
    type = "internal_error"
    code: str | None = None  # as in OpenAI's API; None for none
    label = "internal"

    def __init__(self, message: str, **answer: Unpack[AnswerParts]):
        super().__init__(message)
        self.message = message
        self.status = answer.get("status") or self.status
        self.type = answer.get("type") or self.type
        self.code = answer.get("code") or self.code
        self.param = answer.get("param")
        self.headers = answer.get("headers", ())
        self.label = answer.get("label") or self.label

    def payload(self) -> dict[str, dict[str, str | None]]:
        """The error object of the OpenAI API."""
        kinds = {"type": self.type, "param": self.param, "code": self.code}
        return {"error": {"message": self.message, **kinds}}

    def body(self) -> bytes:
        """The payload as UTF-8 JSON."""
        return json.dumps(self.payload(), ensure_ascii=False).encode("utf-8", "replace")


class BadRequest(GatewayError):
    """The request is malformed; `param` names the key."""

    status = 400
    type = "invalid_request_error"
    label = "bad_request"


class UnknownProvider(BadRequest):
    """The model's name has a prefix that is not the name of any known provider."""

    code = "unknown_provider"

    def __init__(self, message: str):
        super().__init__(message, param="model")


class Unauthorized(GatewayError):
    """No gateway key, or an unknown one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    label = "unauthorized"


class Forbidden(GatewayError):
    """The key is known but may not do this."""

    status = 403
    type = "permission_error"
    code = "forbidden"
    label = "forbidden"


class NotFound(GatewayError):
    """No such route or object."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"
    label = "not_found"


class MethodNotAllowed(GatewayError):
    """The route exists, but not with this method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    label = "method_not_allowed"


class BodyTooLarge(GatewayError):
    """The body is over `server.max_body_mb`."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"
    label = "body_too_large"


class HeadTooLarge(GatewayError):
    """The request head is over `server.max_head_kb` or `server.max_head_fields`."""

    status = 431
    type = "invalid_request_error"
    code = "head_too_large"
    label = "head_too_large"


class RequestTooSlow(GatewayError):
    """A head took longer than `server.max_head_s`, a body longer than `server.max_body_s`, or it
    paused for `server.keep_alive_s`."""

    status = 408
    type = "invalid_request_error"
    code = "request_too_slow"
    label = "too_slow"


class LoopDetected(GatewayError):
    """The request has passed this gateway before: its upstream leads back to it."""

    status = 508
    type = "upstream_error"
    code = "loop_detected"
    label = "loop"


class Overloaded(GatewayError):
    """A limit of the gateway is reached; `retry-after` is in the headers."""

    status = 429
    type = "rate_limit_error"
    code = "gateway_limit"
    label = "overloaded"


class ShuttingDown(GatewayError):
    """New requests are refused, or the time for running ones to finish is over."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    label = "shutdown"

    def __init__(self) -> None:
        headers = (("retry-after", "1"), ("connection", "close"))
        super().__init__("the gateway is shutting down", headers=headers)


class RunRefused(GatewayError):
    """A call that is not sent, because its run may go no further now. Clients of OpenAI and
    Anthropic send a 429 again, unless `x-should-retry` says otherwise. `go_on`: added to the stored
    reason, and kept from the client: the command that lets the run go on."""

    status = 429
    type = "insufficient_quota"
    go_on = ""


class BudgetExceeded(RunRefused):
    """The call would take a budget over its limit."""

    code = "budget_exceeded"
    label = "budget"


class RateLimited(BudgetExceeded):
    """The same of a budget of a short time: it stops no run, and clients send the call again."""

    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    label = "rate_limit"


class RunStopped(RunRefused):
    """The run, or its conversation or one above it, was stopped."""

    type = "permission_error"
    code = "run_stopped"
    label = "stopped"


CAN_RAISE = " The person who runs the gateway can raise the limit."
CAN_GO_ON = " The person who runs the gateway can let it go on."
# What the clients of OpenAI and Anthropic take for: do not send this again.
NO_RETRY: Headers = (("x-should-retry", "false"),)
STOPPED = "Stopped: "  # how the message of a stop begins
ON_TROUBLE = "control.on_trouble: "  # how the reason of a stop begins that this setting has ordered
UNANSWERED = "control.ask_wait_s: "  # the same of a question that nobody answered in time


class RunPaused(RunRefused):
    """The run is paused and was not resumed while the call waited; `retry-after` is set."""

    type = "rate_limit_error"
    code = "run_paused"
    label = "paused"


class UpstreamFailure(GatewayError):
    """A failed upstream call. `retryable`: whether another attempt may succeed. `retry_after_s`:
    the wait that the upstream asked for."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"
    label = "upstream"
    # the upstream's own error body, relayed unchanged; None if it sent none
    raw_body: bytes | None = None

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        **answer: Unpack[AnswerParts],
    ):
        super().__init__(message, **answer)
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The upstream's body if it sent one, else the gateway's."""
        if self.raw_body is not None:
            return self.raw_body
        return super().body()


class UpstreamUnreachable(UpstreamFailure):
    """No connection, or it broke before the answer."""

    code = "upstream_unreachable"
    label = "unreachable"


class UpstreamMalformed(UpstreamFailure):
    """The upstream's answer is not valid, or broke off."""

    code = "upstream_malformed"
    label = "malformed"


class UpstreamTimeout(UpstreamFailure):
    """A time limit of `timeouts` was exceeded."""

    status = 504
    code = "upstream_timeout"
    label = "timeout"
