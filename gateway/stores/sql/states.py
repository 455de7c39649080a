"""Conversations: found by prefix hashes, saved by compare-and-swap."""

from collections.abc import Sequence

from gateway.stores import codec
from gateway.stores.commit_plan import StoredStep
from gateway.stores.protocols import MAX_BRANCHES, VersionConflict
from gateway.stores.records import CallRecord, ConversationRecord, PrefixHashRecord
from gateway.stores.sql.engine import Connection, Engine, Row, columns
from gateway.values import FieldDict, by_name

# The newest messages are looked up first, so that a long history costs no more than a short one.
# That is enough when a match is in their newer half: all prefixes near it were looked up too.
_RECENT_DIGESTS = 64

_HEAD = ("digest", "conversation_id", "position", "kind", "step")
_ONE = "WHERE id = :id AND tenant = :tenant"
FORGOTTEN_VERSION = -1  # of a forgotten conversation: only its ids are left
STORED = "version > 0"
CONVERSATION = columns(codec.CONVERSATION_COLUMNS)
LOAD = f"SELECT {CONVERSATION} FROM conversations {_ONE} AND {STORED}"
VERSION = f"SELECT version FROM conversations {_ONE}"
BRANCHES = f"""
SELECT {CONVERSATION} FROM conversations WHERE tenant = :tenant AND external_key = :external_key
    AND {STORED}
ORDER BY updated_at DESC, pk DESC LIMIT {MAX_BRANCHES}
"""
_IS_FORGOTTEN = f"""
SELECT TRUE FROM conversations WHERE tenant = :tenant AND version = {FORGOTTEN_VERSION}
    AND id IN (:id, CAST(:root AS TEXT))
"""


class SQLStateStore:
    """`StateStore` over an engine."""

    def __init__(self, engine: Engine):
        self._engine = engine
        one_of = engine.forms.among("id", "ids", "text")
        self._find_items = f"SELECT id, content FROM items WHERE tenant = :tenant AND {one_of}"

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        if not digests:
            return []
        root = digests[0]
        newest_first = list(digests[::-1])
        statement = self._engine.forms.find_heads
        wanted = {"root": root_key(root)}

        async def work(connection: Connection) -> Sequence[Row]:
            recent = newest_first[:_RECENT_DIGESTS]
            rows = await connection.fetch(statement, digests=recent, tenant=tenant, **wanted)
            is_near = rows and newest_first.index(rows[0][0]) < _RECENT_DIGESTS // 2
            if is_near or len(newest_first) <= _RECENT_DIGESTS:
                return rows
            return await connection.fetch(statement, digests=newest_first, tenant=tenant, **wanted)

        rows = await self._engine.read(work)
        known: FieldDict = {"tenant": tenant, "root": root}
        return [PrefixHashRecord(**known, **by_name(_HEAD, row)) for row in rows]

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        rows = await self._engine.fetch(LOAD, tenant=tenant, id=conversation_id)
        if rows:
            return codec.conversation_of(rows[0])
        return None

    async def version(self, tenant: str, conversation_id: str) -> int:
        rows = await self._engine.fetch(VERSION, tenant=tenant, id=conversation_id)
        if rows:
            return int(rows[0][0])
        return 0

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        rows = await self._engine.fetch(BRANCHES, tenant=tenant, external_key=external_key)
        return [codec.conversation_of(row) for row in rows]

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        rows = await self._engine.fetch(self._find_items, tenant=tenant, ids=list(ids))
        return {row[0]: row[1] for row in rows}

    async def commit(self, call: CallRecord) -> int:
        """Store a call, but for one of a forgotten session, which passes for stored."""
        call.check()
        conversation = call.conversation
        # The first call of a sub-agent: the others of a forgotten session are conflicts.
        begins = conversation.root_id is not None and not conversation.version
        if begins and await self._is_forgotten(conversation):
            return 1
        try:
            return await self._engine.commit(call)
        except VersionConflict:
            if await self._is_forgotten(conversation):
                return conversation.version + 1
            raise

    async def _is_forgotten(self, conversation: ConversationRecord) -> bool:
        about = {"id": conversation.id, "root": conversation.root_id}
        return bool(await self._engine.fetch(_IS_FORGOTTEN, tenant=conversation.tenant, **about))

    async def ping(self) -> None:
        await self._engine.database.ping()

    async def reopen(self) -> str | None:
        """Opens the database again for every store in it."""
        return await self._engine.database.reopen()

    async def close(self) -> None:
        """Close the database, for every store in it."""
        await self._engine.database.close()


def stored_step(call: str | None, scored: int, state: str, content: str | None) -> StoredStep:
    """From these columns of a step; `scored`: it has a composite."""
    return StoredStep(
        state=state,
        scored=bool(scored),
        call=None if call is None else codec.call_of(call),
        content=codec.content_of(content),
    )


def root_key(root: bytes) -> int:
    """The integer that keeps the hashes of one root together in the table."""
    return int.from_bytes(root[:8], "big", signed=True)
