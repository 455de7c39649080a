"""Views of the list of runs in the store, apart from the server, which commands do not load."""

from gateway.stores.sql.engine import (
    Engine,
    columns,
    conditions,
    excluded,
    insert,
    record_of,
    row_of,
)
from gateway.values import FieldDict, Value


class SavedView(Value):
    """A query of the list of runs under a name."""

    id: str  # unique
    tenant: str  # to whose keys it is shown besides the operator; "" for none
    author: str  # who saved it, as the person gave it; nothing proves it
    name: str  # on its link
    query: str  # of the address, without the question mark
    at: float  # epoch seconds when it was saved


_NAMES = SavedView.__struct_fields__
_view = record_of(SavedView, _NAMES)
_PUT = f"""
{insert("saved_views", _NAMES)}
ON CONFLICT (id) DO UPDATE SET {excluded(("name", "query"))}
"""
_REMOVE = "DELETE FROM saved_views WHERE id = :id RETURNING TRUE"
_MOST = 100  # views that are listed


class ViewStore:
    """Saved views, over an engine. Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def listed(self, tenant: str | None) -> list[SavedView]:
        """The newest views of a tenant, or of all, by name."""
        bound: FieldDict = {"most": _MOST}
        where = conditions({"tenant": ("tenant = :tenant", tenant)}, bound)
        newest = f"SELECT * FROM saved_views WHERE {where} ORDER BY at DESC, id LIMIT :most"
        sql = f"SELECT {columns(_NAMES)} FROM ({newest}) AS newest ORDER BY lower(name), id"
        return await self._engine.made(_view, sql, **bound)

    async def put(self, view: SavedView) -> None:
        """Store a view; of one with the same id, the name and the query are replaced."""
        await self._engine.write(_PUT, **row_of(view, _NAMES))

    async def remove(self, view_id: str) -> bool:
        """Remove a view; False when there is none of this id."""
        return bool(await self._engine.write(_REMOVE, id=view_id))
