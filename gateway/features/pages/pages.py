"""Pages as ASGI applications: access, errors and templates."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import field, replace
from functools import cache, partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct

from gateway.api.operations import kind_of, note, unavailable
from gateway.api.params import Flag, Parameters, Text, read_parameters
from gateway.auth.access import Access, Gate
from gateway.auth.hosts import host_name
from gateway.endpoints.body import Receive, Scope, Send, read_body, send_whole
from gateway.endpoints.edge import EXCHANGE
from gateway.errors import GatewayError, MethodNotAllowed, NotFound, Unauthorized
from gateway.features.pages.security_headers import SECURITY_HEADERS
from gateway.hooks import given, paths
from gateway.steering.transcript.interventions import KIND_LABELS
from gateway.stores.controls import STEERING
from gateway.stores.filters import STATES, RunFilter
from gateway.stores.protocols import StoreError
from gateway.stores.severity import SEVERITY_WORDS
from gateway.stores.sql.audit_log import persons_name
from gateway.tasks import off_loop, spawn
from gateway.text.page import page_templates, style_sheet
from gateway.upstream.model_costs import age_note
from gateway.values import Fields, Texts, frozen
from gateway.wire.headers import header

if TYPE_CHECKING:
    from jinja2 import Environment

    from gateway.runtime import Runtime

T = TypeVar("T")

MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOLDER = Path(__file__).parent


def _render(template: str, values: Fields) -> bytes:
    return _environment().get_template(template).render(values).encode("utf-8", "replace")


@cache
def _environment() -> "Environment":
    """The templates, compiled once, when the first page is requested."""
    made = page_templates(_FOLDER / "templates", *paths("templates"))
    linked = [page for page in chain.from_iterable(given("pages")) if page.tab]
    made.globals["tabs"] = sorted(linked, key=lambda page: page.control)
    made.globals["assets"] = assets_version()
    made.globals["run_states"] = STATES
    words = {code: word.replace("-", " ") for code, word in SEVERITY_WORDS.items()}
    made.globals["severity_words"] = words
    made.globals["intervention_labels"] = KIND_LABELS
    return made


@cache
def static_files() -> dict[str, bytes]:
    """Style sheet, scripts and icon by name, read once."""
    served = (path for path in (_FOLDER / "static").iterdir() if path.suffix in MEDIA_TYPES)
    return {path.name: path.read_bytes() for path in served} | {"app.css": style_sheet().encode()}


@cache
def assets_version() -> str:
    """A digest over all static files, which is part of their addresses."""
    joined = b"".join(body for _, body in sorted(static_files().items()))
    return sha256(joined).hexdigest()[:12]


HTML = "text/html; charset=utf-8"
_MAX_FORM_BYTES = 2**20


class Visit(Struct, frozen=True):
    """One request for a page."""

    runtime: "Runtime"  # the process that answers
    gate: Gate  # checks the session
    access: Access  # rights of the visitor
    scope: Scope  # of ASGI
    values: Fields  # parameters of the query, checked
    # fields that were sent; empty for a visit without a form
    form: Texts = {}

    @property
    def tenant(self) -> str | None:
        """The tenant whose data is shown, None for all. Raises: Forbidden, like Access.scope."""
        return self.access.scope(self.values.get("tenant"))

    @property
    def fragment(self) -> bool:
        """True if the page's script requests only the changing part."""
        return bool(self.values.get("fragment"))

    @property
    def given(self) -> dict[str, str]:
        """The fields of the query that are not empty."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def query(self, **changes: Any) -> str:
        """The page's query with some values changed; None removes one."""
        query = self.given | changes | {"fragment": None}
        left = {name: value for name, value in query.items() if value is not None}
        return f"?{urlencode(left)}"


@frozen
class Page:
    """A response: a template with its values, a redirect, or bytes."""

    template: str = ""  # name of the file; "" for a redirect or bytes
    values: Fields = field(default_factory=dict)  # of the template
    status: int = 200  # of HTTP
    location: str = ""  # address of a redirect; "" for none
    body: bytes | None = None  # bytes; None for a template or redirect
    media: str = HTML  # content type
    headers: tuple[tuple[bytes, bytes], ...] = ()  # further ones


def base_url(visit: Visit) -> str:
    """The address by which the browser reached the gateway, without `/v1`."""
    headers = dict(visit.scope["headers"])
    secure = visit.scope.get("scheme") == "https" or headers.get(b"x-forwarded-proto") == b"https"
    host = headers.get(b"host", b"127.0.0.1:8080").decode("latin-1")
    return f"{'https' if secure else 'http'}://{host}"


# The page of what is not counted yet; a script looks again.
COUNTING = Page(template="counting.html", values={"title": "Being counted"})
_ANSWERED_S = 0.1  # after which the page that asked for a count has been sent
_KEPT_S = 30.0  # most that what `kept` gives is behind
_MOST_KEPT = 50
_KEPT: dict[tuple[object, ...], Any] = {}  # None: being counted


async def kept(visit: Visit, read: Callable[[], Awaitable[T]], *about: object) -> T:
    """The result of `read`, read once for all who look within _KEPT_S. `about`: what it depends on
    besides the tenant."""
    key = _key(visit, about)
    found = _KEPT.get(key) or await read()
    if len(_KEPT) >= _MOST_KEPT:
        _KEPT.clear()
    _KEPT[key] = found
    return found


def _key(visit: Visit, about: tuple[object, ...]) -> tuple[Any, ...]:
    now = time.time() // _KEPT_S
    return now, visit.runtime.opened.stores.runs, visit.tenant, *about


async def counted(
    visit: Visit, runs: RunFilter, read: Callable[[], Awaitable[T]], *about: object
) -> T | None:
    """As `kept`, for what is counted over all `runs` that match. Where they are many, no page waits
    for it: it is counted beside, meanwhile the last count is given, None without one."""
    now, *rest = _key(visit, about)
    if (now, *rest) not in _KEPT:
        count = partial(kept, visit, read, *about)
        if (await visit.runtime.runs.newest_runs(runs)).every:
            return await count()
        _KEPT[now, *rest] = None
        spawn(_beside(count))
    return _KEPT.get((now, *rest)) or _KEPT.get((now - 1, *rest))


async def _beside(count: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(_ANSWERED_S)
    with suppress(StoreError):  # a look after _KEPT_S tries again
        await count()


Handler = Callable[[Visit], Awaitable[Page]]


class FragmentParameters(Parameters):
    """Flag of a request for only the part of the page that changes."""

    fragment: Flag | None = None  # set by the page's script, which replaces that part only


class FileParameters(Parameters):
    """The version of the static files, which is part of their address."""

    v: Text | None = None  # changes with the file's content, so that browsers may cache it for ever


# The address of a static file changes with its content.
_CACHE_FOREVER = ((b"cache-control", b"public, max-age=31536000, immutable"),)


class PageRoute(Struct, frozen=True):
    """The address of a page."""

    path: str  # with `{name}` for parameters in it
    show: Handler | None = None  # gives the page; None: a form alone
    params: type[Parameters] = Parameters  # of the query
    change: Handler | None = None  # takes the page's form; None: it has none
    public: bool = False  # shown without a session
    report: bool = False  # any key may send the form; other forms need the admin key
    tab: str = ""  # name of its link in the navigation; "" where it has none
    control: bool = False  # its link is shown to visitors who may change something


class PageEndpoint:
    """Serves one page: GET shows it, POST changes something."""

    def __init__(self, runtime: "Runtime", gate: Gate, page: PageRoute):
        self._runtime = runtime
        self._gate = gate
        self._page = page
        self._handlers = {"GET": page.show, "HEAD": page.show, "POST": page.change}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[EXCHANGE].route = "dashboard"
        try:
            page = await self._answer(scope, receive)
        except Unauthorized:
            query = scope["query_string"].decode("latin-1")
            address = scope["path"] + f"?{query}" * bool(query)
            page = redirect(f"/dashboard/login?next={quote(address)}")
        except GatewayError as error:
            try:
                access: Access | None = self._gate.admit(scope)
            except GatewayError:
                access = None
            values = {
                "title": error.message,
                "status": error.status,
                "access": access,
                "store": self._runtime.store_health(),
                "steering_off": None,
                "path": scope["path"],
            }
            more = tuple((name.encode(), value.encode()) for name, value in error.headers)
            page = Page(template="error.html", values=values, status=error.status, headers=more)
        await _send(send, page)

    async def _answer(self, scope: Scope, receive: Receive) -> Page:
        if self._page.public:
            access = _NOBODY
        else:
            access = self._gate.admit(scope)
        handler = self._handlers.get(scope["method"])
        if handler is None:
            allowed = ", ".join(name for name, known in self._handlers.items() if known)
            raise MethodNotAllowed(
                f"{scope['path']} does not take {scope['method']}", headers=(("allow", allowed),)
            )
        form: Texts = {}
        if scope["method"] == "POST":
            if not (self._page.public or self._page.report):
                access.require_control()
            body = await read_body(
                scope["headers"], receive, scope[EXCHANGE], limit=_MAX_FORM_BYTES
            )
            form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
            persons_name(form.get("author", ""))
        # Without the fields that were left empty in a form.
        parts = scope["query_string"].split(b"&")
        query = b"&".join(part for part in parts if part and not part.endswith(b"="))
        values = dict(read_parameters(self._page.params, query))
        visit = Visit(self._runtime, self._gate, access, scope=scope, values=values, form=form)
        try:
            page = await handler(visit)
        except StoreError as error:
            raise unavailable(error) from error
        host = host_name(header(scope["headers"], b"host"))
        if host and access.how == "session" and access.operator:
            self._runtime.visited_at = base_url(visit)
        if form:
            _KEPT.clear()
        if form and page.status < 400 and not (self._page.public or self._page.report):
            await self._note(visit, page)
        shared = {
            "access": access,
            "path": scope["path"],
            "store": self._runtime.store_health(),
            "steering_off": self._runtime.holds.find((STEERING,)),
            "old_prices": age_note(),
            "tenant": values.get("tenant"),
        }
        return replace(page, values=shared | dict(page.values))

    async def _note(self, visit: Visit, page: Page) -> None:
        form = visit.form
        last = self._page.path.rpartition("/")[2]
        act = form.get("action") or ("change" if "}" in last else last)
        parts = visit.scope["path_params"].items()
        own = (value for name, value in parts if f"{{{name}" in self._page.path)
        names = [form.get("account"), form.get("subject"), page.values.get("made_id"), *own]
        names.append(form.get("tenant"))
        subject = next((str(name) for name in names if name), "")
        other = ("action", "subject")
        kind = "budget" if "account" in form else kind_of(self._page.path)
        said = {name: value for name, value in form.items() if value and name not in other}
        await note(visit.runtime, visit.access, kind, act=act, subject=subject, said=said)


_NOBODY = Access(tenant="", how="open")


async def unknown_page(visit: Visit) -> Page:
    """Answer an address without a page. Raises: NotFound."""
    raise NotFound(f"there is no page {visit.scope['path'][:80]!r}")


async def show_static(visit: Visit) -> Page:
    """One of the files that pages load. Raises: NotFound."""
    name = visit.scope["path_params"]["name"]
    body = static_files().get(name)
    if body is None:
        raise NotFound(f"there is no file {name[:80]!r}")
    return Page(body=body, media=MEDIA_TYPES[Path(name).suffix], headers=_CACHE_FOREVER)


def redirect(location: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Page:
    """Send the browser to another address, which it requests with GET."""
    return Page(status=303, location=location, headers=headers)


async def _send(send: Send, page: Page) -> None:
    body = page.body
    if body is None and page.template:
        # A long page would hold up the event loop.
        body = await off_loop(_render, page.template, page.values)
    body = body or b""
    headers = [
        (b"content-type", page.media.encode()),
        *SECURITY_HEADERS,
        *page.headers,
    ]
    if b"cache-control" not in dict(page.headers):
        headers.append((b"cache-control", b"no-store"))
    if page.location:
        headers.append((b"location", page.location.encode("ascii", "replace")))
    await send_whole(send, page.status, headers, body=body)
