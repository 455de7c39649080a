"""One page as an ASGI application: who may see it, its security headers, its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from gateway.api.access import Access, Gate
from gateway.api.operations import unavailable
from gateway.api.params import Param, read_query
from gateway.dashboard.rendering import render
from gateway.endpoints.body import Receive, Scope, Send, read_body
from gateway.endpoints.edge import EXCHANGE
from gateway.errors import GatewayError, MethodNotAllowed, NotFound, Unauthorized
from gateway.runtime import Runtime
from gateway.stores.base import StoreError

HTML = "text/html; charset=utf-8"
_MAX_FORM_BYTES = 2**20

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    # Not `no-referrer`: with that a browser sends no origin with our own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request for a page."""

    runtime: Runtime
    gate: Gate
    access: Access
    scope: Scope
    values: Mapping[str, Any]
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> str | None:
        """The tenant to look at, None for all. Raises: Forbidden; as Access.scope."""
        return self.access.scope(self.values.get("tenant"))

    @property
    def fragment(self) -> bool:
        """Whether a script asks for the changing part of the page only."""
        return bool(self.values.get("fragment"))

    def query(self, **changes: Any) -> str:
        """The page's query with some values changed; None removes one."""
        given = dict(parse_qsl(self.scope["query_string"].decode("latin-1")))
        given |= {name: value for name, value in changes.items() if value is not None}
        dropped = {"fragment"} | {name for name, value in changes.items() if value is None}
        left = {name: value for name, value in given.items() if name not in dropped}
        return f"?{urlencode(left)}" if left else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer: a template and its values, a redirect, or bytes."""

    template: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    location: str = ""
    body: bytes | None = None
    media: str = HTML
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[Visit], Awaitable[Page]]

FRAGMENT = Param(name="fragment", description="The changing part only.", kind="flag")


class PageEndpoint:
    """Serves one page: GET shows, POST changes."""

    def __init__(
        self,
        runtime: Runtime,
        gate: Gate,
        show: Handler | None,
        *,
        change: Handler | None = None,
        params: tuple[Param, ...] = (),
        public: bool = False,
    ) -> None:
        self._runtime = runtime
        self._gate = gate
        self._handlers = {"GET": show, "HEAD": show, "POST": change}
        self._params = params
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[EXCHANGE].route = "dashboard"
        try:
            page = await self._answer(scope, receive)
        except Unauthorized:
            page = Page(status=303, location=f"/dashboard/login?next={quote(_address(scope))}")
        except GatewayError as error:
            values = {
                "title": error.message,
                "status": error.status,
                "access": self._known(scope),
                "path": scope["path"],
            }
            more = tuple((name.encode(), value.encode()) for name, value in error.headers)
            page = Page(template="error.html", values=values, status=error.status, headers=more)
        await _send(send, page)

    def _known(self, scope: Scope) -> Access | None:
        try:
            return self._gate.admit(scope)
        except GatewayError:
            return None

    async def _answer(self, scope: Scope, receive: Receive) -> Page:
        access = _NOBODY if self._public else self._gate.admit(scope)
        handler = self._handlers.get(scope["method"])
        if handler is None:
            allowed = ", ".join(name for name, taken in self._handlers.items() if taken)
            raise MethodNotAllowed(
                f"{scope['path']} does not take {scope['method']}", headers=(("allow", allowed),)
            )
        form: Mapping[str, str] = {}
        if scope["method"] == "POST":
            body = await read_body(scope["headers"], receive, scope[EXCHANGE], _MAX_FORM_BYTES)
            form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        values = read_query(self._params, _filled(scope["query_string"]))
        visit = Visit(
            runtime=self._runtime,
            gate=self._gate,
            access=access,
            scope=scope,
            values=values,
            form=form,
        )
        try:
            page = await handler(visit)
        except StoreError as error:
            raise unavailable(error) from error
        shared = {"access": access, "path": scope["path"]}
        return Page(
            template=page.template,
            values=shared | {"tenant": values.get("tenant")} | dict(page.values),
            status=page.status,
            location=page.location,
            body=page.body,
            media=page.media,
            headers=page.headers,
        )


_NOBODY = Access(tenant="", how="open")


async def nowhere(visit: Visit) -> Page:
    """What an address without a page gives. Raises: NotFound."""
    raise NotFound(f"there is no page {visit.scope['path'][:80]!r}")


def redirect(location: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Page:
    """Send the browser on, to be asked for with GET."""
    return Page(status=303, location=location, headers=headers)


def _address(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def _filled(query: bytes) -> bytes:
    """The query without the fields a form leaves empty."""
    return b"&".join(part for part in query.split(b"&") if part and not part.endswith(b"="))


async def _send(send: Send, page: Page) -> None:
    if page.location:
        body = b""
    elif page.body is not None:
        body = page.body
    else:
        body = await render(page.template, **page.values)
    headers = [
        (b"content-type", page.media.encode()),
        (b"content-length", str(len(body)).encode()),
        *SECURITY_HEADERS,
        *page.headers,
    ]
    if not any(name == b"cache-control" for name, _ in page.headers):
        headers.append((b"cache-control", b"no-store"))
    if page.location:
        headers.append((b"location", page.location.encode("ascii", "replace")))
    await send({"type": "http.response.start", "status": page.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
