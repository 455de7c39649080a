"""Sessions, read off the conversations and their runs: a commit writes nothing for them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from gateway.stores import lists
from gateway.stores.codec import (
    INJECTION_COLUMNS,
    READ_TITLE,
    RUN,
    RUNS,
    SESSION,
    content_of,
    injection_of,
    names,
    run_of,
    step_of,
)
from gateway.stores.filters import RunFilter
from gateway.stores.learning import JOBS
from gateway.stores.redact import MAX_INT
from gateway.stores.sessions import (
    MOST_CALLS,
    SHOWN_RUNS,
    Member,
    Session,
    SessionCalls,
    SessionPage,
    SessionSums,
    SessionTree,
    answered_title,
    called_title,
    said_title,
    short_title,
)
from gateway.stores.severity import SEVERITIES
from gateway.stores.sql.engine import Connection, Engine
from gateway.stores.sql.migrations import expanded, parts_of
from gateway.stores.sql.runs import LAST
from gateway.stores.sql.usage import severity_sql, where
from gateway.stores.totals import RunRecord
from gateway.text.formatting import counted
from gateway.values import FieldDict, by_name

_NAMED = {
    "session": SESSION,
    "session_of_m": SESSION.replace("c.", "m."),
    "last": LAST,
    "run": RUN,
    "runs_of": RUNS,
    "read_title": READ_TITLE,
    "injections": ", ".join([f"i.{name}" for name in INJECTION_COLUMNS]),
}
_PARTS = parts_of(Path(__file__).with_name("sessions.sql")) | _NAMED
_SQL = {name: expanded(part, _PARTS) for name, part in _PARTS.items()}
_SUMS = (*names(SessionSums), "tenant", "started_at", "last_at")
_MEMBER = names(Member, "depth", "runs")
_NONE = ""  # no order: for a count of all
# What a title is made of: a statement, and how one of its texts becomes a title.
_TITLES = (
    ("said", said_title),
    ("tasks", short_title),
    ("done", lambda text: called_title(content_of(text))),
    ("done", lambda text: answered_title(content_of(text))),
)


class SessionStore:
    """Reads sessions. Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._filled = {
            "plain": engine.forms.plain,
            "chosen": f"c.version > 0 AND {self._chosen('c')}",
            "severity": severity_sql(engine.forms),
            "run_of_job": engine.forms.member("payload", "run"),
        }

    def _chosen(self, table: str) -> str:
        among = self._engine.forms.among
        names = [f"{table}.{name}" for name in ("id", "root_id", "parent_id")]
        return f"({' OR '.join([among(name, 'ids', 'text') for name in names])})"

    async def list_sessions(
        self,
        runs: RunFilter,
        page: lists.PageRequest,
        *,
        side: bool = False,
        among: Sequence[str] | None = None,
    ) -> SessionPage:
        """One page of the sessions with a run that matches, ordered by their start or by sums over
        all their runs. `side`: instead of them what clients asked for themselves, without a
        session. `among`: instead of all that match those of these ids. Raises: ValueError for an
        invalid cursor."""
        about, values = self._found(runs, page.sort, side=side, among=among)
        order, sign = page.order
        about |= {"after": "TRUE", "order": order, "limit": page.limit + 1}
        # The sessions that have still to be asked are asked in their order, until the page is full.
        about["sorted"] = about["limit"] if about["left"] == "TRUE" else MAX_INT
        if (after := page.after()) is not None:
            values |= {"after": float(after[0]), "after_id": after[1]}
            about["after"] = f"(key, place) {sign} (:after, :after_id)"
        sql = _SQL["listed"].format(**about)

        async def work(connection: Connection) -> SessionPage:
            rows = await connection.fetch(sql, **values)
            ids = [row[0] for row in rows[: page.limit]]
            found = await self._sessions(ids, connection, most=SHOWN_RUNS)
            last = None
            if len(rows) > page.limit:
                last = lists.encode_cursor(*rows[page.limit - 1][1:])
            return SessionPage(sessions=found, next_cursor=last)

        return await self._engine.view(work)

    async def count_sessions(
        self,
        runs: RunFilter,
        *,
        side: bool = False,
        among: Sequence[str] | None = None,
        most: int | None = None,
    ) -> int:
        """Number of sessions with a run that matches, see `list_sessions`; above `most` it is
        `most` + 1."""
        sort = "started_at"
        if most is None and not side:
            sort = _NONE
        about, values = self._found(runs, sort, side=side, among=among)
        sql = _SQL["count"].format(**about, limit=most + 1 if most else MAX_INT)
        return await self._engine.number(sql, **values)

    async def session(self, name: str, *, tenant: str | None) -> SessionTree | None:
        """The session of an id: its own, that of one of its conversations or runs, or the client's
        own id; None when the tenant has none."""

        async def work(connection: Connection) -> SessionTree | None:
            root = await connection.value(_SQL["named"], id=name, tenant=tenant)
            for session in await self._sessions([root] if root else [], connection):
                return SessionTree(
                    session=session, members=await self._members(session, connection)
                )
            return None

        return await self._engine.view(work)

    async def calls(self, session: Session) -> SessionCalls:
        """The calls of a session in short, and what steering cost beside them."""

        async def work(connection: Connection) -> SessionCalls:
            rows = []
            for name in ("calls", "texts", "read"):
                sql = _SQL[name].format(most=MOST_CALLS, **self._filled)
                rows.append(await connection.fetch(sql, ids=[session.id], kind=JOBS))
            steps, texts, ((tokens, usd),) = rows
            return SessionCalls(
                steps=tuple(await connection.made(lambda r: step_of(r[0], r[1:]), steps)),
                texts=tuple([injection_of(row[0], row[1:]) for row in texts]),
                reader_tokens=tokens,
                reader_usd=usd,
            )

        return await self._engine.view(work)

    def _found(
        self, runs: RunFilter, sort: str, *, side: bool, among: Sequence[str] | None
    ) -> tuple[FieldDict, FieldDict]:
        """The statement for `sessions` and the condition that is `left` to them, and their values.
        By their start they are walked through, each asked by itself for a run that matches; else
        all are read."""
        values: FieldDict = {}
        table = "m"
        if is_walk := sort == "started_at" and not side:
            table = "c"
        within = f"{table}.version > 0"
        if runs.tenant is not None:
            values["tenant"] = runs.tenant
            within += f" AND {table}.tenant = :tenant"
        matching = "TRUE"
        if among is not None:
            values["ids"] = list(among)
            within += f" AND {self._chosen(table)}"
        elif (others := structs.replace(runs, tenant=None)) != RunFilter():
            # The tenant is asked for above: by that of runs all of them would be read.
            matching, asked = where(others, self._engine.forms)
            values |= asked
        if is_walk:
            has_run = [
                _SQL["has_run"].format(runs=each, **self._filled)
                for each in sorted({_SQL["own"], matching} - {"TRUE"})
            ]
            sql = _SQL["walked"].format(where=" AND ".join([within, *has_run]), **self._filled)
            matching = "TRUE"
        elif sort == _NONE:
            if matching != "TRUE":
                within += f" AND {_SQL['in_matching'].format(runs=matching)}"
            sql = _SQL["all"].format(where=within)
            matching = "TRUE"
        else:
            having = f"= {int(not side)}"
            if "(" not in matching:  # columns alone, which are read with the sums
                having += f" AND max(CASE WHEN {matching} THEN 1 ELSE 0 END) = 1"
                matching = "TRUE"
            sql = _SQL["grouped"].format(key=_SQL[f"by_{sort}"], where=within, having=having)
        if matching != "TRUE":
            matching = _SQL["of_each"].format(runs=matching, **self._filled)
        return {"sessions": sql, "left": matching}, values

    async def _sessions(
        self, ids: Sequence[str], connection: Connection, most: int = MAX_INT
    ) -> tuple[Session, ...]:
        """The sessions of these ids, in their order; each with the newest `most` of its runs."""
        runs: dict[str, list[RunRecord]] = defaultdict(list)
        sql = _SQL["runs"].format(most=most, **self._filled)
        rows = await connection.fetch(sql, ids=list(ids))
        for run in await connection.made(run_of, rows):
            runs[run.session_id].append(run)
        titles = await self._titles(runs, connection)
        found: dict[str, Session] = {}
        sql = _SQL["sums"].format(**self._filled)
        for name, *sums in await connection.fetch(sql, ids=list(ids)):
            values = by_name(_SUMS, sums)
            values["severity"] = SEVERITIES[values["severity"]]
            about = {"id": name, "title": titles.get(name, ""), "runs": tuple(runs[name])}
            found[name] = Session(**values, **about)
        return tuple([found[name] for name in ids if runs[name]])

    async def _members(self, session: Session, connection: Connection) -> tuple[Member, ...]:
        runs: dict[str, list[RunRecord]] = defaultdict(list)
        for run in reversed(session.runs):
            runs[run.conversation_id].append(run)
        depths: dict[str | None, int] = {}
        found = []
        sql = _SQL["members"].format(**self._filled)
        for _, *row in await connection.fetch(sql, ids=[session.id]):
            values = by_name(_MEMBER, row)
            name = values["id"]
            depths[name] = depths.get(values["parent_id"], -1) + 1
            found.append(Member(**values, depth=depths[name], runs=tuple(runs[name])))
        return tuple(found)

    async def _titles(
        self, runs: Mapping[str, Sequence[RunRecord]], connection: Connection
    ) -> dict[str, str]:
        """The titles of the sessions with these runs: of each the first text that makes one."""
        titles: dict[str, str] = {}
        for statement, make in _TITLES:
            missing = [name for name in runs if name not in titles]
            if not missing:
                break
            sql = _SQL[statement].format(**self._filled)
            for name, text in await connection.fetch(sql, ids=missing):
                if name not in titles and (title := make(text)):
                    titles[name] = title
        return {name: _about(of) for name, of in runs.items()} | titles


def _about(runs: Sequence[RunRecord]) -> str:
    """The title of a session of which no text was stored."""
    calls = counted(sum(run.totals.calls for run in runs), "call")
    return f"{runs[-1].agent or 'a client'}: {calls} to {runs[-1].model_requested or 'a model'}"
