"""The run log in a database, as it has to be after whatever happened to the gateways."""

from __future__ import annotations

from urllib.parse import urlsplit

from steering_gateway_testing.postgres import PostgresServer

Recorded = set[tuple[str, int]]
"""(run, step) of calls."""

_CALLS = """
SELECT r.id, s.step_index FROM steps AS s JOIN runs AS r ON r.pk = s.run_pk
WHERE s.call IS NOT NULL
"""
# Runs whose totals are not those of their rows, or that lack a step. The first request of a run has
# no row where the run went on under another id, while its gateway could not ask the database.
_WRONG = """
SELECT r.id, r.steps, r.scored_steps, r.calls, r.injections, s.* FROM runs AS r, LATERAL (
    SELECT count(*) AS n, max(step_index) AS newest, min(step_index) AS oldest,
        count(composite) AS scored,
        sum(CASE WHEN call IS NULL THEN 0 ELSE 1 + (call::jsonb ->> 'retries')::int END) AS calls,
        (SELECT count(*) FROM injections AS g WHERE g.run_pk = r.pk AND g.applied) AS given
    FROM steps WHERE run_pk = r.pk
) AS s
WHERE s.n <> s.newest - s.oldest + 1 OR s.oldest > 1 OR r.steps <> s.newest
    OR r.scored_steps <> s.scored OR r.calls <> s.calls OR r.injections <> s.given
"""
_TWICE = """
SELECT run_pk, step_index, source, text, count(*) FROM injections WHERE applied
GROUP BY 1, 2, 3, 4 HAVING count(*) > 1
"""
# A pattern that a run was given at two steps.
_PATTERN_AGAIN = """
SELECT run_pk, pattern_id, count(*) FROM injections WHERE applied AND pattern_id IS NOT NULL
GROUP BY 1, 2 HAVING count(*) > 1
"""
# More than a run may be given: 5 texts of monitors, one pattern of its tenant, the rules once.
_EXCEEDED = """
SELECT run_pk, source, count(*) FROM injections WHERE applied GROUP BY 1, 2
HAVING count(DISTINCT step_index) > CASE source WHEN 'monitor' THEN 5 WHEN 'e1' THEN 1
    WHEN 'e3' THEN 1 END
"""
# More than one look-up's general patterns, two at most, for one kind of failure of a run.
_KIND_EXCEEDED = """
SELECT g.run_pk, s.failure_type, count(*) FROM injections AS g
JOIN steps AS s USING (run_pk, step_index) WHERE g.applied AND g.source = 'e2' GROUP BY 1, 2
HAVING count(DISTINCT g.step_index) > 1 OR count(*) > 2
"""
_CALLS_MADE = "SELECT coalesce(sum(calls), 0) FROM runs"
_GIVEN = "SELECT source, count(*) FROM injections WHERE applied GROUP BY 1 ORDER BY 1"


def recorded(server: PostgresServer, url: str) -> Recorded:
    """The calls in the database, each once, in runs whose totals and steps are complete, and that
    were given no more than their allowances."""
    name = urlsplit(url).path.strip("/")
    assert server.execute(_WRONG, name) == ""
    assert server.execute(_TWICE, name) == ""
    assert server.execute(_PATTERN_AGAIN, name) == ""
    assert server.execute(_EXCEEDED, name) == ""
    assert server.execute(_KIND_EXCEEDED, name) == ""
    rows = [line.split("|") for line in server.execute(_CALLS, name).splitlines()]
    found = [(run, int(step)) for run, step in rows]
    assert len(found) == len(set(found))
    return set(found)


def given(server: PostgresServer, url: str) -> dict[str, int]:
    """The number of pieces of guidance in the database, by their source."""
    rows = server.execute(_GIVEN, urlsplit(url).path.strip("/")).splitlines()
    return {source: int(number) for source, _, number in (row.partition("|") for row in rows)}


def all_calls(server: PostgresServer, url: str) -> int:
    """The calls of all runs, retries included."""
    return int(server.execute(_CALLS_MADE, urlsplit(url).path.strip("/")))
