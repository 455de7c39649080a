"""Why no connection could be made: one line that says what to do."""

from __future__ import annotations

import os
import ssl
from urllib.parse import parse_qs, urlsplit

import asyncpg

from gateway.config.storage import StorageSettings
from gateway.stores.postgres.errors import translate
from gateway.stores.protocols import StoreUnavailable, StoreUnreachable

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_PORT = 5432


def refused(error: BaseException, dsn: str, settings: StorageSettings) -> BaseException:
    """The StoreError for what the attempt to connect to `dsn` raised.

    StoreUnreachable for what time may repair; StoreUnavailable for what somebody has to repair.
    """
    place = settings.place
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        # The driver refuses an option of the URL. A certificate error is a ValueError, too.
        return StoreUnavailable(f"{place}: {_one_line(error)}")
    if isinstance(error, asyncpg.UndefinedObjectError):
        # Options that the driver does not know are sent to the server as settings.
        return StoreUnavailable(
            f"{place}: an option of the URL is known neither to the driver nor to the "
            f"server; leave it out ({_one_line(error)})"
        )
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return _system_error(error, dsn, place)
    return translate(error, settings)


def _system_error(error: OSError, dsn: str, place: str) -> StoreUnavailable:
    if unreadable := _unreadable(dsn):
        return StoreUnavailable(f"{place}: {unreadable}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreUnavailable(
            f"{place}: the server's certificate is not accepted; sslrootcert has to name the file "
            f"with its authority, and the host has to be one of its names ({_one_line(error)})"
        )
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return StoreUnavailable(
            f"{place}: the server offers no TLS, which sslmode demands; switch it on there, or "
            "set sslmode=disable where nobody can listen in"
        )
    return StoreUnreachable(
        f"{place} cannot be reached: no PostgreSQL answers at {_address(dsn)} ({_reason(error)})"
    )


def _unreadable(dsn: str) -> str:
    """What is wrong with a file that the URL's TLS options name; empty when nothing is."""
    for name, values in parse_qs(urlsplit(dsn).query).items():
        if name not in _FILES:
            continue
        try:
            with open(values[-1], "rb"):
                pass
        except OSError as error:
            return f"{name}: {values[-1]!r} cannot be read ({error.strerror})"
    return ""


def _address(dsn: str) -> str:
    hosts = urlsplit(dsn).netloc.rpartition("@")[2]
    parts = [urlsplit(f"//{host}") for host in hosts.split(",") if host]
    return " or ".join([f"{p.hostname}:{p.port or _PORT}" for p in parts]) or "the local socket"


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
