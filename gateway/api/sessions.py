"""`/api/sessions`: trees of conversations with their runs, sub-agents and side calls."""

from msgspec.structs import asdict
from pydantic import BaseModel

from gateway.api.operations import ApiRequest, ApiResponse, Operations, like, usable
from gateway.api.params import (
    Cursor,
    Flag,
    PathText,
    RunFilters,
    SortParameters,
    TenantParameter,
    naming,
    page_request,
)
from gateway.api.runs import Described, Run
from gateway.api.steering_bill import SteeringBill, steering_bill
from gateway.api.views import run_view
from gateway.config import Settings
from gateway.errors import NotFound
from gateway.runtime import Runtime
from gateway.stores import filters, sessions
from gateway.stores.severity import SEVERITY_WORDS, SeverityWord
from gateway.stores.sql.sessions import SessionStore
from gateway.tasks import off_loop
from gateway.values import FieldDict

OPERATIONS = Operations()


@like(sessions.Session)
class Session(BaseModel):
    """One session with the sums over all its runs; a list has its newest ten runs."""

    severity: SeverityWord  # the worst that a run came to
    tokens: int  # input and output tokens together
    duration_s: float  # seconds from the first request to the newest call
    runs: list[Run]  # the newest first


class SessionPage(BaseModel):
    """One page of a list of sessions."""

    sessions: list[Session]  # in the order that was asked for
    next_cursor: Cursor  # null on the last page
    total: int = 0  # with `count`: all sessions that match


@like(sessions.Member)
class Member(BaseModel):
    """One conversation of a session."""

    runs: list[str]  # their ids, oldest first


class Bill(Described, SteeringBill):
    """The part of a session's cost that steering itself added. Dollars are null where there are no
    tokens, or no price is known."""


class SessionTree(BaseModel):
    """A session with its conversations."""

    session: Session  # with all its runs
    members: list[Member]  # the root first, then by their time
    steering: Bill  # what steering itself added to the cost


class SessionListParameters(SortParameters, RunFilters):
    """Filter of sessions, by their runs, and their order."""

    count: Flag = False  # also count all sessions that match
    side: Flag = False  # instead: what clients asked for themselves, without a session


class SessionParameters(TenantParameter):
    """Id of a session."""

    session_id: PathText  # also that of one of its conversations or runs, or the client's own


@OPERATIONS.add("GET /api/sessions", SessionPage, "One page.")
async def list_sessions(request: ApiRequest[SessionListParameters]) -> ApiResponse:
    """Sessions, newest first or in another order; one matches if one of its runs does."""
    params = request.params
    store = session_store(request.runtime)
    runs = filters.run_filter(dict(params), request.tenant)
    with naming("cursor"):
        found = await store.list_sessions(runs, page_request(dict(params)), side=params.side)
    views = [session_view(session, request.runtime.settings) for session in found.sessions]
    payload: FieldDict = {"sessions": views, "next_cursor": found.next_cursor}
    if params.count:
        payload["total"] = await store.count_sessions(runs, side=params.side)
    return ApiResponse(payload)


@OPERATIONS.add("GET /api/sessions/{session_id}", SessionTree, "The session.")
async def get_session(request: ApiRequest[SessionParameters]) -> ApiResponse:
    """A session with its conversations: the main agent, sub-agents, forks and side calls."""
    name = request.params.session_id
    store = session_store(request.runtime)
    found = await store.session(name, tenant=request.tenant)
    if found is None:
        raise NotFound(f"there is no session {name[:80]!r}", param="session_id")
    bill = await off_loop(steering_bill, await store.calls(found.session), request.runtime)
    view = {**tree_view(found, request.runtime.settings), "steering": asdict(bill)}
    return ApiResponse(view)


def tree_view(tree: sessions.SessionTree, settings: Settings) -> FieldDict:
    """A session with its conversations, as JSON has it."""
    members = [{**asdict(each), "runs": [run.id for run in each.runs]} for each in tree.members]
    return {"session": session_view(tree.session, settings), "members": members}


def session_view(session: sessions.Session, settings: Settings) -> FieldDict:
    """A session with values derived from its sums."""
    return {
        **asdict(session),
        "severity": SEVERITY_WORDS[session.severity],
        "tokens": session.tokens,
        "duration_s": session.duration_s,
        "runs": [run_view(run, settings) for run in session.runs],
    }


def session_store(runtime: Runtime) -> SessionStore:
    """The sessions of the store. Raises: StoreUnavailable: it cannot put runs together."""
    return usable(runtime.opened.stores.sessions, "the store cannot put runs together")
