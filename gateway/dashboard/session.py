"""Logging in with a key, and logging out."""

from __future__ import annotations

import asyncio

from gateway.api.params import Parameters, Text
from gateway.auth.access import COOKIE, SESSION_S
from gateway.auth.browsers import refuse_other_origins
from gateway.dashboard.pages import Page, Visit, redirect
from gateway.endpoints.body import Scope
from gateway.upstream.base import header

_HOME = "/dashboard"
_WRONG_KEY_DELAY_S = 0.5  # slows down whoever tries many keys


class LoginParameters(Parameters):
    """Where to go after the login."""

    next: Text | None = None


async def show_login(visit: Visit) -> Page:
    """The form."""
    return _form(visit, failed=False)


async def log_in(visit: Visit) -> Page:
    """Start a session with the admin key, or with a gateway key to see one tenant's runs."""
    refuse_other_origins(visit.scope["headers"])
    session = visit.gate.log_in(visit.form.get("key", "").strip(), visit.scope)
    if session is None:
        await asyncio.sleep(_WRONG_KEY_DELAY_S)
        return _form(visit, failed=True)
    return redirect(_inside(visit.form.get("next", "")), _cookie(visit.scope, session, SESSION_S))


async def log_out(visit: Visit) -> Page:
    """End the session in this browser."""
    refuse_other_origins(visit.scope["headers"])
    return redirect("/dashboard/login", _cookie(visit.scope, "", 0))


def _form(visit: Visit, *, failed: bool) -> Page:
    values = {
        "title": "Log in",
        "failed": failed,
        "next": _inside(visit.form.get("next") or visit.values["next"] or ""),
        "access": None,
    }
    return Page(template="login.html", values=values, status=401 if failed else 200)


def _inside(path: str) -> str:
    """`path` when it leads to a page of the dashboard, else its first page."""
    inside = path == _HOME or path.startswith(("/dashboard/", "/dashboard?"))
    return path if inside and path.isascii() and path.isprintable() else _HOME


def _cookie(scope: Scope, value: str, seconds: int) -> tuple[tuple[bytes, bytes], ...]:
    secure = scope.get("scheme") == "https" or _behind_tls(scope)
    text = f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"
    return ((b"set-cookie", (text + ("; Secure" if secure else "")).encode()),)


def _behind_tls(scope: Scope) -> bool:
    return header(scope["headers"], b"x-forwarded-proto").lower() == b"https"
