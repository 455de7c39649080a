"""Sessions that are erased: all that the database has of them goes. A conversation with their ids
stays, of a version that no commit replaces, so that nothing brings them back."""

from collections import Counter
from collections.abc import Sequence

from gateway.steering.identity import conversation_id
from gateway.stores.records import IMPORTED
from gateway.stores.sql.engine import Connection, Engine, Row
from gateway.stores.sql.migrations import tables_of_features
from gateway.stores.sql.states import FORGOTTEN_VERSION

TAGS = ("owner", "author")  # of runs, whose value names a person
# From all that is named up to the root, and all below it, also below what was removed.
_TREES = """
WITH RECURSIVE up (id) AS (
    SELECT CAST(c.id AS TEXT) FROM conversations AS c
    LEFT JOIN runs AS r ON r.conversation_pk = c.pk
    WHERE (CAST(:tenant AS TEXT) IS NULL OR c.tenant = :tenant) AND ({chosen})
    UNION SELECT CAST(coalesce(c.root_id, c.parent_id) AS TEXT)
    FROM conversations AS c JOIN up ON c.id = up.id
    WHERE c.root_id IS NOT NULL OR c.parent_id IS NOT NULL
), tree (id) AS (
    SELECT id FROM up UNION SELECT CAST(c.id AS TEXT)
    FROM conversations AS c JOIN tree ON tree.id IN (c.parent_id, c.root_id)
)
SELECT c.pk, c.id, c.version FROM conversations AS c
WHERE c.id IN (SELECT id FROM tree)
"""
_OF_SESSION = "{names} OR c.external_key = :name OR r.id = :name"
_OF_PERSON = "r.key_name = :name OR {owner} = :name OR {author} = :name"
_AGENTS = f"SELECT DISTINCT agent FROM runs WHERE mode = '{IMPORTED}'"
# Also those that retention has removed, by the key of what they taught.
_RUNS = """
SELECT tenant, id FROM runs WHERE {own}
UNION SELECT tenant, run_id FROM pattern_evidence WHERE key_name = CAST(:person AS TEXT)
"""
_IDS = "(SELECT id FROM runs WHERE {own} UNION SELECT id FROM conversations WHERE {these})"
_OF_RUNS = "run_pk IN (SELECT pk FROM runs WHERE {own})"
_CALLS = """
EXISTS (SELECT 1 FROM conversations AS c WHERE {these} AND answers.call LIKE '%' || c.id || '%')
"""
_ROWS = {
    "raw_calls": _OF_RUNS,
    "injections": _OF_RUNS,
    "steps": _OF_RUNS,
    "run_controls": f"subject IN {_IDS}",
    "workload_runs": f"run_id IN {_IDS}",
    "alerts": f"substr(path, length('/dashboard/runs/') + 1) IN {_IDS}",
    "answers": _CALLS,
    "heads": "{own}",
    "items": "{own}",
    "runs": "{own}",  # the last one: the others are found by it
}
_CLEARED = f"UPDATE operator_changes SET reason = '', body = :nothing WHERE subject IN {_IDS}"
_LEFT = f"version = {FORGOTTEN_VERSION}, created_at = 1e12, updated_at = 1e12"  # never removed
_EMPTY = "served_head = :empty, signature = :empty, state = :empty, message_count = 0"
_STAYS = f"""
UPDATE conversations SET {_LEFT}, {_EMPTY}, parent_id = NULL, root_id = NULL
WHERE {{these}} RETURNING external_key
"""
_NOR_IMPORTED = f"""
INSERT INTO conversations (id, tenant, source, external_key, version, created_at, updated_at,
    served_head, message_count, signature, has_tools, state)
VALUES (:id, :tenant, '', :key, {FORGOTTEN_VERSION}, 1e12, 1e12, :empty, 0, :empty,
    FALSE, :empty)
ON CONFLICT (id) DO NOTHING
"""


async def find(
    engine: Engine, tenant: str | None, name: str, *, person: bool, owner: str
) -> Sequence[Row]:
    """The conversations of the session with this id (its own, a run's, or its client's), with all
    above and below; or those in which a person had a run, by a key's name or a tag. Of each the
    key, the id and the version, FORGOTTEN_VERSION once it is gone. `owner`: of imported ones."""
    forms = engine.forms
    tags = {tag: forms.member("r.tags", tag) for tag in TAGS}
    chosen = _OF_PERSON if person else _OF_SESSION
    statement = _TREES.format(
        chosen=chosen.format(names=forms.among("c.id", "names", "text"), **tags)
    )
    agents = await engine.fetch(_AGENTS)
    kept = [conversation_id(owner, name, f"{IMPORTED}:{agent}") for (agent,) in agents]
    names = [name, name.rpartition(".")[0], *kept]
    return await engine.fetch(statement, tenant=tenant, name=name, names=names)


async def runs_of(engine: Engine, pks: list[int], person: str | None) -> Sequence[Row]:
    """The tenant and id of each run of these conversations, and of a person's key."""
    own = engine.forms.among("conversation_pk", "pks", "int8")
    return await engine.fetch(_RUNS.format(own=own), pks=pks, person=person)


async def erase(engine: Engine, pks: list[int], importer: str) -> Counter[str]:
    """Erase conversations with their runs; the number of rows by table. `importer`: the tenant for
    which logs are imported, which brings none of them back."""
    forms = engine.forms
    these = {
        "own": forms.among("conversation_pk", "pks", "int8"),
        "these": forms.among("pk", "pks", "int8"),
    }

    async def work(connection: Connection) -> Counter[str]:
        # First: what gateways have of them is a conflict from here on, and waits for no other row.
        keys = await connection.fetch(_STAYS.format(**these), pks=pks, empty=b"")
        erased = Counter(conversations=len(pks))
        await connection.fetch(_CLEARED.format(**these), pks=pks, nothing="{}")
        for table, rows in _ROWS.items():
            if table != "alerts" or table in tables_of_features():
                gone = f"DELETE FROM {table} WHERE {rows} RETURNING TRUE".format(**these)
                erased[table] = len(await connection.fetch(gone, pks=pks))
        for (key,) in filter(any, keys):
            other = conversation_id(importer, key)
            await connection.fetch(_NOR_IMPORTED, id=other, tenant=importer, key=key, empty=b"")
        return erased

    return await engine.transact(work, patient=True)
