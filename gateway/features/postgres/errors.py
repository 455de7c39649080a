"""Turns the errors of PostgreSQL and of its driver into the store's, one line each."""

import os
import ssl
from urllib.parse import parse_qs, urlsplit

import asyncpg

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import (
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
    meaning_of,
    meanings,
)

_MEANINGS = meanings(__package__, asyncpg)
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_PORT = 5432

_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


def translate(error: BaseException, settings: StorageSettings) -> BaseException:
    """The StoreError for an error of the driver or the server; any other error is unchanged. The
    text never contains the password: neither the server nor the driver repeats it."""
    if isinstance(error, StoreError) or not isinstance(error, _DRIVER_ERRORS):
        return error
    meaning, words = meaning_of(error, _MEANINGS)
    # Without the server's hints, which are for who writes a program.
    reason = " ".join(str(error).partition("\nHINT:")[0].split()) or type(error).__name__
    translated = meaning(f"{settings.place} {words} ({reason})")
    translated.__cause__ = error
    return translated


def is_about_one_record(error: Exception) -> bool:
    """Whether a group failed for what one of its records contains: for anything but the errors that
    are known to be about the server."""
    return not isinstance(error, StoreError) or type(error) is StoreError


def breaks_connection(error: BaseException) -> bool:
    """Whether the connection can no longer be used, or it is not known whether it can."""
    if isinstance(error, asyncpg.PostgresError):
        return isinstance(
            error, asyncpg.PostgresConnectionError | asyncpg.OperatorInterventionError
        )
    return not isinstance(error, ValueError | TypeError | StoreError)


def refused(error: BaseException, dsn: str, settings: StorageSettings) -> BaseException:
    """Returns the StoreError for an exception that connecting to `dsn` raised: StoreUnreachable
    if waiting may help, StoreUnavailable if a person has to act."""
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
    hosts = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
    parts = [urlsplit(f"//{host}") for host in hosts if host]
    where = " or ".join([f"{p.hostname}:{p.port or _PORT}" for p in parts]) or "the local socket"
    reason = error.strerror or _one_line(error)
    if isinstance(error, ConnectionError) and error.errno:
        reason = os.strerror(error.errno)
    return StoreUnreachable(
        f"{place} cannot be reached: no PostgreSQL answers at {where} ({reason})"
    )


def _unreadable(dsn: str) -> str:
    """Fault of a file that the URL's TLS options name; empty if there is none."""
    for name, values in parse_qs(urlsplit(dsn).query).items():
        try:
            if name in _FILES:
                open(values[-1], "rb").close()
        except OSError as error:
            return f"{name}: {values[-1]!r} cannot be read ({error.strerror})"
    return ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
