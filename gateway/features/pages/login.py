"""The login to the dashboard, and where it leads: only to one of its own pages."""

import asyncio

from gateway.api.params import Parameters, Text
from gateway.auth.other_sites import refuse_other_origins
from gateway.auth.sessions import SESSION_S
from gateway.endpoints.body import Scope
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.upstream.credentials import SESSION_COOKIE
from gateway.wire.headers import header

_HOME = "/dashboard"
_WRONG_KEY_DELAY_S = 0.5  # slows down whoever tries many keys


class LoginParameters(Parameters):
    """The page to open after the login."""

    next: Text | None = None  # path on this gateway; None: the first page


async def show_login(visit: Visit, *, failed: bool = False) -> Page:
    """The form."""
    values = {
        "title": "Log in",
        "failed": failed,
        "next": _inside(visit.form.get("next") or visit.values["next"] or ""),
        "access": None,
    }
    return Page(template="login.html", values=values, status=401 if failed else 200)


async def log_in(visit: Visit) -> Page:
    """Start a session with the admin key, or with a gateway key to see one tenant's runs."""
    refuse_other_origins(visit.scope["headers"])
    key = visit.form.get("key", "").strip()
    session = visit.gate.log_in(key, visit.scope, visit.form.get("name", ""))
    if session is None:
        await asyncio.sleep(_WRONG_KEY_DELAY_S)
        return await show_login(visit, failed=True)
    return redirect(_inside(visit.form.get("next", "")), _cookie(visit.scope, session, SESSION_S))


async def log_out(visit: Visit) -> Page:
    """End the session in this browser."""
    refuse_other_origins(visit.scope["headers"])
    return redirect("/dashboard/login", _cookie(visit.scope, "", 0))


def _inside(path: str) -> str:
    """`path` when it leads to a page of the dashboard, else its first page."""
    inside = path == _HOME or path.startswith(("/dashboard/", "/dashboard?"))
    if inside and path.isascii() and path.isprintable():
        return path
    return _HOME


def _cookie(scope: Scope, value: str, seconds: int) -> tuple[tuple[bytes, bytes], ...]:
    behind_tls = header(scope["headers"], b"x-forwarded-proto").lower() == b"https"
    secure = scope.get("scheme") == "https" or behind_tls
    text = f"{SESSION_COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"
    return ((b"set-cookie", (text + ("; Secure" if secure else "")).encode()),)
