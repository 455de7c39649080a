"""The runs under way, with the number of steps in a row for which each is stuck."""

from gateway.stores.codec import INJECTIONS, RUN, RUNS, STEP_COLUMNS, injection_of, run_of, step_of
from gateway.stores.filters import LIVE, RunFilter
from gateway.stores.severity import LENGTH_MONITOR
from gateway.stores.sql.engine import Connection, SqlForms
from gateway.stores.sql.usage import where
from gateway.stores.under_way import LiveQuery, LiveRun

STEPS_WITHOUT_CONTENT = ", ".join(["NULL" if name == "content" else name for name in STEP_COLUMNS])
_NEWEST_STEP = f"""
SELECT {STEPS_WITHOUT_CONTENT} FROM steps WHERE run_pk = :pk AND composite IS NOT NULL
ORDER BY step_index DESC LIMIT 1
"""
# Read from the newest step back to the first one that is not stuck: at which no monitor fires, or
# only that of a long run.
_CALM = """
SELECT step_index FROM steps WHERE run_pk = :pk AND (composite IS NULL OR NOT EXISTS (
    SELECT 1 FROM {fired} WHERE value <> '{length}'
)) AND step_index BETWEEN 0 AND :newest ORDER BY step_index DESC LIMIT 1
"""
_GUIDANCE = f"""
SELECT {INJECTIONS} FROM injections WHERE run_pk = :pk AND source <> 'e3'
ORDER BY step_index DESC, ordinal DESC LIMIT 1
"""
_SPENT = """
SELECT count(*), sum(CAST({cost} AS DOUBLE PRECISION)) FROM steps
WHERE run_pk = :pk AND at >= :since AND call IS NOT NULL
"""


async def live_runs(
    query: LiveQuery, forms: SqlForms, connection: Connection
) -> tuple[LiveRun, ...]:
    """The runs under way, the newest first, with what is known of each now."""
    wanted = RunFilter(tenant=query.tenant, since=query.begun, mode=LIVE)
    condition, values = where(wanted, forms)
    sql = f"""
        SELECT {RUN}, r.pk FROM {RUNS}
        WHERE {condition} AND r.ended_at IS NULL
            AND r.outcome IS NULL AND r.updated_at >= :seen
        ORDER BY r.updated_at DESC, r.id DESC LIMIT :limit
    """
    rows = await connection.fetch(sql, **values, seen=query.since, limit=query.limit)
    spent = _SPENT.format(cost=forms.member("call", "cost_usd"))
    calm = _CALM.format(fired=forms.elements("readings", "fired"), length=LENGTH_MONITOR)
    live = []
    for *row, pk in rows:
        run = run_of(row)
        ((calls, usd),) = await connection.fetch(spent, pk=pk, since=query.spent_since)
        newest = None
        stuck = 0
        if step := await connection.row(_NEWEST_STEP, pk=pk):
            newest = step_of(run.id, step)
            if newest.fired:
                last = await connection.value(calm, pk=pk, newest=newest.step_index)
                stuck = newest.step_index - (-1 if last is None else last)
        guidance = await connection.row(_GUIDANCE, pk=pk)
        live.append(
            LiveRun(
                run=run,
                newest=newest,
                stuck_steps=stuck,
                guidance=injection_of(run.id, guidance) if guidance else None,
                spent_usd=usd,
                recent_calls=calls,
            )
        )
    return tuple(live)
