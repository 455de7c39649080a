"""Logins and keys of clients that are at their limit, and what is asked instead until it is over.

An upstream that answers 429 to the client's own credential says how long its limit holds. Until
then the fallbacks are asked at once, and no call is wasted on it; afterwards one call tries it, the
others wait for that one's result."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b

from cachetools import LRUCache
from msgspec import Struct

from gateway.text.formatting import counted, money
from gateway.upstream.base import retry_after_s
from gateway.wire.headers import RawHeaders, header

_MOST = 1000  # credentials of clients
_LONGEST_S = 8 * 86_400.0  # a weekly limit, and a day
_USUAL_S = 60.0  # how long a limit holds whose end is not said
_TRIAL_S = 60.0  # how long the others wait for the call that tries
_SHOWN_S = 86_400.0  # how long it is shown after its end
# The first of these is the account of a ChatGPT login, whose token changes every hour.
_CREDENTIALS = (b"chatgpt-account-id", b"authorization", b"x-api-key", b"x-goog-api-key")
# The end of a Claude login's limit, in seconds of the epoch. Source: Anthropic's API.
_ENDS = b"anthropic-ratelimit-unified-reset"
# Seconds until then, in the error of ChatGPT's backend, and in Google's, where an "s" ends them.
# Source: google.rpc.RetryInfo; Code Assist's answers.
_ENDS_IN = re.compile(
    rb'"(?:resets_in_seconds|retryDelay|quotaResetDelay)"\s*:\s*"?(\d+(?:\.\d+)?)s?["\s,}]'
)


class DrySeat(Struct, kw_only=True):
    """A client's credential at one host that is, or was, at its limit for one model."""

    about: str  # host and model, in words
    since: float  # epoch seconds of the first refusal
    until: float  # epoch seconds at which it is asked again
    back_at: float = 0.0  # epoch seconds of its first answer afterwards; 0 before that
    other: str = ""  # name of the deployment that answered instead, the newest
    calls: int = 0  # answered by such deployments
    usd: float = 0.0  # US dollars of them, as far as their price is known

    def charge(self, other: str, usd: float | None) -> None:
        """Count a call that another deployment has answered."""
        self.other = other
        self.calls += 1
        self.usd += usd or 0.0

    @property
    def words(self) -> str:
        """One line for people."""
        end = self.back_at or self.until
        times = [f"{datetime.fromtimestamp(at, UTC):%b %d %H:%M}" for at in (self.since, end)]
        return (
            f"A login {self.about} {'was' if self.back_at else 'is'} at its limit, "
            f"{times[0]} to {times[1]} UTC: {self.other or 'no other'} answered "
            f"{counted(self.calls, 'call')}, {money(self.usd)}"
        )


class DrySeats:
    """The credentials at their limit that this process knows. Times: seconds of the epoch."""

    def __init__(self) -> None:
        self._seats: LRUCache[bytes, DrySeat] = LRUCache(_MOST)

    def resting(self, key: bytes, now: float) -> DrySeat | None:
        """The seat whose limit holds; None for one that may be asked: after the limit that is one
        call, for the others it goes on resting."""
        seat = self._seats.get(key)
        if seat is None or seat.back_at:
            return None
        if now < seat.until:
            return seat
        seat.until = now + _TRIAL_S
        return None

    def note(self, key: bytes, about: str, now: float, until: float) -> DrySeat:
        """The upstream has refused this credential until then."""
        seat = self._seats.get(key)
        if seat is None or seat.back_at:
            seat = self._seats[key] = DrySeat(about=about, since=now, until=until)
        seat.until = until
        return seat

    def answered(self, key: bytes, now: float) -> None:
        """The upstream has answered: the limit is over."""
        seat = self._seats.get(key)
        if seat is not None:
            seat.back_at = seat.back_at or now

    def shown(self, now: float) -> list[DrySeat]:
        """Those whose limit holds, or was over lately."""
        return [s for s in self._seats.values() if now - (s.back_at or s.until) < _SHOWN_S]


def credential_key(headers: RawHeaders, about: str) -> bytes:
    """Digest of the credential in a client's headers; empty without one."""
    found = next((each for name in _CREDENTIALS if (each := header(headers, name))), b"")
    return found and blake2b(found, key=blake2b(about.encode()).digest()).digest()


def limit_ends(headers: RawHeaders, content: bytes, now: float) -> float:
    """The time until which an answer of status 429 asks to wait: by its headers, or by the error of
    ChatGPT's backend or of Google's hosts."""
    waits = [retry_after_s(headers) or 0.0]
    with suppress(ValueError):
        waits.append(float(header(headers, _ENDS)) - now)
    waits += map(float, _ENDS_IN.findall(content))
    return now + min(max(waits) or _USUAL_S, _LONGEST_S)
